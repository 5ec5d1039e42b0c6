"""The table of policies: formats, best values, ratios, and that a terminal of 80 columns holds it."""

from __future__ import annotations

import pytest
from made_run import make_events, make_record
from made_summaries import EMPTY
from rich.console import Console

from agentcache.report.events import Event
from agentcache.report.policy_run import group_by_policy
from agentcache.report.summary import Distribution, PolicySummary, Summary, summarize
from agentcache.report.table import Row, build_rows, format_number, terminal_table


def row_of(name: str, *policies: PolicySummary) -> Row:
    rows = build_rows({str(index): policy for index, policy in enumerate(policies)})
    return next(row for row in rows if row.metric.name == name)


def print_table(summary: Summary, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(terminal_table(summary))
    return capture.get().splitlines()


def summary_of(*names: str) -> Summary:
    events: list[Event] = [event for name in names for event in make_events(name, 5)]
    return summarize(make_record(), group_by_policy(events))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.04123, "0.0412"),
        (1.0, "1.00"),
        (9.996, "10.0"),
        (41.25, "41.2"),
        (99.94, "99.9"),
        (99.96, "100"),
        (1234.6, "1,235"),
    ],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert format_number(value) == text


def test_lower_latency_is_best_and_has_a_ratio_to_the_first() -> None:
    policies = [EMPTY.model_copy(update={"job_latency_s": Distribution(mean=mean)}) for mean in (10.0, 8.0, None)]
    cells = row_of("Job latency, mean", *policies).cells
    assert [(cell.text, cell.ratio, cell.best) for cell in cells] == [
        ("10.0", "", False),
        ("8.00", "0.80×", True),
        ("–", "–", False),
    ]


def test_higher_hit_rate_is_best() -> None:
    cells = row_of("Token hit rate", *(EMPTY.model_copy(update={"token_hit_rate": rate}) for rate in (0.2, 0.5))).cells
    assert [(cell.text, cell.ratio, cell.best) for cell in cells] == [("20.0", "", False), ("50.0", "2.50×", True)]


def test_values_that_read_the_same_have_no_best() -> None:
    policies = [EMPTY.model_copy(update={"makespan_s": seconds}) for seconds in (10.001, 10.002)]
    assert not any(cell.best for cell in row_of("Makespan", *policies).cells)


def test_ratio_to_nothing_is_not_shown() -> None:
    policies = [EMPTY.model_copy(update={"preemptions": count}) for count in (0, 5)]
    assert [cell.ratio for cell in row_of("Preemptions", *policies).cells] == ["", "–"]


def test_counts_of_jobs_have_neither_best_nor_ratio() -> None:
    policies = [EMPTY.model_copy(update={"jobs": 9, "failed": failed}) for failed in (4, 0)]
    for name, texts in (("Jobs finished", ["5", "9"]), ("Jobs failed", ["4", "0"])):
        cells = row_of(name, *policies).cells
        assert [cell.text for cell in cells] == texts
        assert not any(cell.best or cell.ratio for cell in cells)


def test_terminal_shows_every_policy_within_80_columns() -> None:
    long = [f"h200-monday: a policy with a rather long name {index}" for index in range(3)]
    names = ["vllm", "lru", "continuum+asymcache", "continuum-paper", "agentcache", *long]
    summary = summary_of(*names)
    lines = print_table(summary, width=80)
    metrics = [row.metric for row in build_rows(summary.policies)]
    assert max(map(len, lines)) <= 80
    heads = [line for line in lines if not line.startswith(tuple(metric.name for metric in metrics))]
    for name in names:
        # A long name may be folded, its start never lost.
        assert any(name[:10] in line for line in heads), name
    assert all(sum(line.startswith(metric.header) for line in lines) == 3 for metric in metrics if not metric.rare)
    assert not any("…" in line for line in lines)


def test_terminal_takes_brackets_in_a_name_as_text() -> None:
    assert any("[red]lru[/]" in line for line in print_table(summary_of("[red]lru[/]"), width=80))


def test_waits_have_a_row_for_each_reason_that_any_policy_has() -> None:
    waiting = EMPTY.model_copy(update={"waits_s": {"pins": 1.25}})
    rows = build_rows({"vllm": EMPTY, "lru": EMPTY.model_copy(update={"waits_s": {}}), "agentcache": waiting})
    names = [row.metric.name for row in rows]
    assert names[names.index("TTFT, P99") + 1 :][:2] == ["waited: pins", "TPOT, mean"]
    assert [cell.text for cell in row_of("waited: pins", EMPTY, waiting).cells] == ["–", "1.25"]


def test_a_rare_metric_has_a_row_where_a_policy_has_a_value() -> None:
    for figures, shown in ((EMPTY.model_copy(update={"prefill_s": 12.5}), True), (EMPTY, False)):
        names = [row.metric.name for row in build_rows({"lru": figures})]
        assert ("Prefill, modelled" in names) is shown
