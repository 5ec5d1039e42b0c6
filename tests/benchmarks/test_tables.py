"""What `benchmarks/tables.py` makes of the lines in `results/`, and that README and docs/results.md are that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from load_tables import LOOP_SEED, RELEASE, make_loops
from result_lines import Run, compare, read_runs, select
from table_cells import show_change, show_times
from tables import MARKED, PAGES, TABLES, format_table, write_tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
MOST_BYTES = 3_000_000


def make_run(policy: str = "vllm", seed: int = 1, **changes: Any) -> Run:
    fields: dict[str, Any] = {
        "date": "2026-11-30",
        "commit": RELEASE[0],
        "vllm": "0.32.0",
        "where": "simulated: H200",
        "gpus": 1,
        "workload": "bfcl",
        "parameters": {"rate": 2.6},
        "model": "llama-3.1-8b",
        "seeds": [seed],
        "policy": policy,
        "flags": [],
        "figures": {"mean_job_s": 100.0},
        "source": "a page",
    }
    return Run(**fields | changes)


def make_line(**changes: Any) -> str:
    run = make_run()
    return json.dumps({name: getattr(run, name) for name in Run.__slots__} | changes)


@pytest.fixture(scope="module")
def runs() -> dict[str, list[Run]]:
    return read_runs(RESULTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_are_what_the_lines_give(page: Path, runs: dict[str, list[Run]]) -> None:
    assert write_tables(page.read_text(), runs) == page.read_text()


def test_each_table_stands_on_a_page_once() -> None:
    found = [table[2] for page in PAGES for table in MARKED.finditer(page.read_text())]
    assert sorted(found) == sorted(TABLES)


@pytest.mark.parametrize("table", ["first", "bfcl"])
def test_tables_without_a_line_are_others(table: str, runs: dict[str, list[Run]]) -> None:
    """The pages hang on the lines: without a seed of BFCL its tables have other figures."""
    fewer = runs | {"bfcl": [run for run in runs["bfcl"] if run.seeds != [600]]}
    assert TABLES[table](fewer) != TABLES[table](runs)


def test_results_stay_small(runs: dict[str, list[Run]]) -> None:
    assert sum(map(len, runs.values())) > 3000
    assert sum(path.stat().st_size for path in RESULTS.glob("*.jsonl")) < MOST_BYTES


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"commit": "main"}, "commit"),
        ({"date": "yesterday"}, "date"),
        ({"where": "H200"}, "where"),
        ({"figures": {}}, "figures"),
        ({"figures": {"mean_job_s": "12 s"}}, "figures"),
        ({"seeds": []}, "seeds"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_malformed_line_is_named(changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text(f"{make_line()}\n{make_line(**changes)}\n")
    with pytest.raises(ValueError, match=rf"^some\.jsonl:2: .*{what}"):
        read_runs(tmp_path)


def test_a_line_without_a_field_is_named(tmp_path: Path) -> None:
    line = json.loads(make_line())
    del line["policy"]
    (tmp_path / "some.jsonl").write_text(json.dumps(line))
    with pytest.raises(ValueError, match=r"^some\.jsonl:1: .*'policy'"):
        read_runs(tmp_path)


def test_seeds_are_compared_in_pairs() -> None:
    stock = [make_run(seed=seed, figures={"mean_job_s": 100.0}) for seed in (1, 2, 3)]
    ours = [
        make_run("agentcache", seed, figures={"mean_job_s": mean}) for seed, mean in ((1, 50.0), (2, 70.0), (9, 1.0))
    ]
    found = compare(stock, ours, "mean_job_s")
    assert (found.seeds, found.theirs, found.ours, found.ratio) == ([1, 2], 100.0, 60.0, 0.6)
    assert show_change(found) == "−40 % (−50 to −30)"
    assert show_times(found) == "0.60 (0.50 to 0.70)"


def test_of_two_runs_of_a_seed_the_later_counts() -> None:
    early = make_run("agentcache", figures={"mean_job_s": 10.0}, date="2026-11-29")
    late = make_run("agentcache", figures={"mean_job_s": 90.0})
    assert compare([make_run()], [late, early], "mean_job_s").ratio == 0.9


def test_means_are_compared_where_seeds_were_not_kept() -> None:
    stock = make_run(seeds=[1, 2], figures={"mean_job_s": 80.0})
    ours = make_run("agentcache", seeds=[1, 2], figures={"mean_job_s": 60.0})
    found = compare([stock], [ours], "mean_job_s")
    assert (show_change(found), len(found.seeds)) == ("−25 %", 2)
    with pytest.raises(ValueError, match="no ttft_p99_s"):
        compare([stock], [ours], "ttft_p99_s")


def test_five_seeds_have_an_interval_within_their_span() -> None:
    ratios = (0.5, 0.6, 0.7, 0.8, 0.9)
    ours = [make_run("agentcache", seed, figures={"mean_job_s": 100 * ratio}) for seed, ratio in enumerate(ratios)]
    spread = compare([make_run(seed=seed) for seed in range(5)], ours, "mean_job_s").spread
    assert spread is not None
    assert 0.5 < spread[0] < 0.7 < spread[1] < 0.9


def test_runs_are_selected_by_fields_and_parameters() -> None:
    some = [make_run(), make_run("agentcache"), make_run(parameters={"rate": 1.3})]
    assert select(some, policy="vllm", rate=2.6) == some[:1]
    assert select(some, policy=("vllm", "agentcache"), rate=(1.3, 2.6)) == some
    assert select(some, lanes=8) == []


def test_a_run_more_is_a_row_more() -> None:
    def lanes(count: int, policy: str) -> Run:
        parameters = {"lanes": count, "cpu_cache_tokens": 0, "measured_s": 600}
        return make_run(policy, LOOP_SEED, parameters=parameters, figures={"tok_s": 20_000.0, "ttft_p99_s": 30.0})

    before = make_loops({"loops": [lanes(8, "vllm"), lanes(8, "agentcache")]})
    after = make_loops({"loops": [lanes(8, "vllm"), lanes(8, "agentcache"), lanes(12, "agentcache")]})
    assert before == (
        ["CPU cache", "policy", "8 lanes"],
        [["none", "vllm", "20.0; 30"], ["none", "agentcache", "20.0; 30"]],
    )
    assert [row[-1] for row in after[1]] == ["–", "20.0; 30"]


def test_a_ragged_table_is_refused() -> None:
    assert format_table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |\n"
    with pytest.raises(ValueError, match="not 2 cells"):
        format_table(["a", "b"], [["1"]])
