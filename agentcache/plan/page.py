"""Writes `plan.html`: one page that needs nothing else, with predictions, their error, and what they were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentcache.plan.plots import plot_outcomes
from agentcache.plan.settings import Cell, Outcome, describe_caches, describe_cell
from agentcache.plan.table import HEADINGS, KNOWN_ERROR, LEGEND, group_rows
from agentcache.report.html import find_template
from agentcache.report.table import format_number
from agentcache.report.verdict import Comparison, judge, tell_capacity


def write_headline(outcomes: Sequence[Outcome]) -> str | None:
    """Judge the policies with the first cache and as many engines, without a CPU cache and with each size of it."""
    if not outcomes:
        return None
    first = outcomes[0].cell
    alike = [each for each in outcomes if (each.cell.kv_tokens, each.cell.engines) == (first.kv_tokens, first.engines)]
    groups = dict.fromkeys(replace(each.cell, policy="") for each in alike)
    return " ".join(filter(None, (_judge(_find_rivals(alike, group)) for group in groups))) or None


def _judge(rivals: Sequence[Outcome]) -> str | None:
    """Judge the policy with the lowest mean beside `vllm`, or else the first; None where either has no mean."""
    base = _find_base(rivals)
    # The first of those that are equal.
    others = [(each.mean_s, place) for place, each in enumerate(rivals) if each is not base and each.mean_s is not None]
    if base.mean_s is None or not others:
        return None
    best = rivals[min(others)[1]]
    pairs = [(base.latencies_s[job], best.latencies_s[job]) for job in base.latencies_s if job in best.latencies_s]
    verdict = judge(
        Comparison(
            base=base.cell.policy,
            policy=best.cell.policy,
            latencies_s=pairs,
            ttft_p99_s=(base.ttft_p99_s, best.ttft_p99_s),
            fits=_loses_nothing(base),
            pressure=base.working_set / base.cell.all_tokens,
            simulated=True,
        )
    )
    return f"Cache of {describe_caches(base.cell)}: {verdict[0].lower()}{verdict[1:]}"


def _find_rivals(outcomes: Sequence[Outcome], cell: Cell) -> list[Outcome]:
    return [each for each in outcomes if replace(each.cell, policy=cell.policy) == cell]


def _find_base(rivals: Sequence[Outcome]) -> Outcome:
    return next((each for each in rivals if each.cell.policy == "vllm"), rivals[0])


def tell_pressure(outcomes: Sequence[Outcome]) -> str | None:
    """Say what the first cache would have to hold, how many hits it misses, and what CPU caches change."""
    if not outcomes:
        return None
    first = _find_base(_find_rivals(outcomes, outcomes[0].cell))
    cell = first.cell
    if first.mean_s is None:
        return None
    hits = f"{cell.policy} hits {first.hit_rate:.1%} of the prompt tokens, at most {first.clairvoyant_hits:.1%} can hit"
    means = [
        f", and with {each.cell.cpu_tokens:,} tokens of CPU cache its mean job takes {format_number(each.mean_s)} s "
        f"instead of {format_number(first.mean_s)} s"
        for each in outcomes
        if each.mean_s is not None and each.cell == replace(cell, cpu_tokens=each.cell.cpu_tokens) != cell
    ]
    told = f"{tell_capacity(first.working_set, cell.all_tokens)} {hits}{''.join(means)}."
    return told.replace("%", " %")


def _loses_nothing(outcome: Outcome) -> bool:
    """Tell whether a cache without end would hit no more, as the table shows it."""
    return round(outcome.hit_rate, 3) >= round(outcome.endless_hits, 3)


_TEMPLATE = "plan.html.jinja"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that the page says. `scope` is what part of the recording its figures are of.

    `fewest` has how many engines meet the target under a policy: None if not enough do.
    """

    command: str
    recording: str
    facts: Mapping[str, str]
    scope: str
    outcomes: Sequence[Outcome]
    target_s: float | None
    fewest: Mapping[str, int | None]
    max_gpus: int
    gpus_per_engine: int
    notes: Sequence[str]
    interrupted: bool


def list_fewest(plan: Plan) -> list[str]:
    """Say how many GPUs each policy needs for the target."""
    lines = []
    for policy, engines in plan.fewest.items():
        if engines is None:
            needs = f"more than {plan.max_gpus}"
        else:
            gpus = engines * plan.gpus_per_engine
            needs = f"{gpus} {'GPU' if gpus == 1 else 'GPUs'}"
        lines.append(f"{policy}: {needs} for a mean job latency of {plan.target_s:g} s")
    return lines


def describe_plan(plan: Plan, page: Path | None) -> dict[str, Any]:
    """Return what --json writes: docs/recording.md has the fields."""
    fewest = {name: engines and engines * plan.gpus_per_engine for name, engines in plan.fewest.items()}
    return {
        "version": 1,
        "command": plan.command,
        "recording": plan.recording,
        "page": None if page is None else str(page),
        "interrupted": plan.interrupted,
        "facts": plan.facts,
        "scope": plan.scope,
        "outcomes": [_describe_outcome(outcome) for outcome in plan.outcomes],
        "verdict": write_headline(plan.outcomes),
        "target_s": plan.target_s,
        "fewest_gpus": fewest,
        "notes": [*plan.notes, KNOWN_ERROR],
    }


def _describe_outcome(outcome: Outcome) -> dict[str, Any]:
    fields = asdict(outcome)
    del fields["latencies_s"]
    return {**fields.pop("cell"), **fields}


def write_page(plan: Plan, path: Path) -> None:
    """Write the page."""
    path.write_text(_render(plan), encoding="utf-8")


def _render(plan: Plan) -> str:
    return find_template(_TEMPLATE, Path(__file__).parent).render(
        title=f"Plan for {Path(plan.recording).name}",
        headline=write_headline(plan.outcomes),
        warnings=["The plan was interrupted: only what was simulated by then is here."] if plan.interrupted else [],
        scope=plan.scope,
        pressure=tell_pressure(plan.outcomes),
        columns=HEADINGS,
        groups=group_rows(plan.outcomes),
        legend=LEGEND,
        known_error=KNOWN_ERROR,
        fewest=list_fewest(plan),
        plots=plot_outcomes(plan.outcomes),
        problems=[f"{describe_cell(each.cell)}: {each.problem}" for each in plan.outcomes if each.problem],
        command=plan.command,
        facts=plan.facts,
        notes=plan.notes,
    )
