"""Writes `plan.html`: one page that needs nothing else, with predictions, their error, and what they were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentcache.plan.plots import plot_outcomes
from agentcache.plan.settings import Outcome, describe_caches, describe_cell
from agentcache.plan.table import HEADINGS, KNOWN_ERROR, LEGEND, MEAN_SHARE, NOTICED, group_rows
from agentcache.report.html import find_template
from agentcache.report.table import format_number


def write_headline(outcomes: Sequence[Outcome]) -> str | None:
    """Compare the policies with the first cache and as many engines, without a CPU cache and with each size of it."""
    if not outcomes:
        return None
    first = outcomes[0].cell
    alike = [each for each in outcomes if (each.cell.kv_tokens, each.cell.engines) == (first.kv_tokens, first.engines)]
    groups = dict.fromkeys(replace(each.cell, policy="") for each in alike)
    sentences = (_compare([each for each in alike if replace(each.cell, policy="") == group]) for group in groups)
    return " ".join(sentence for sentence in sentences if sentence is not None) or None


def _compare(rivals: Sequence[Outcome]) -> str | None:
    """Say what the lowest mean is of, beside the first policy; None where that has no mean, or is alone."""
    first = rivals[0]
    if first.mean_s is None:
        return None
    means = [(each.mean_s, each.cell.policy) for each in rivals if each.mean_s is not None]
    if len(means) < 2:
        return None
    # The first of those that are equal.
    best_s, policy = min(means, key=lambda each: each[0])
    worst_s, worst = max(means, key=lambda each: each[0])
    share = 1 - best_s / first.mean_s
    opening = f"With a cache of {describe_caches(first.cell)}"
    if first.cell.cpu_tokens or first.cell.engines > 1:
        opening += ","
    if 1 - best_s / worst_s < NOTICED:
        why = ": nothing is lost that is wanted again" if all(map(_loses_nothing, rivals)) else ""
        bound = f"within {100 * NOTICED:.1f} % of each other{why}."
        return f"{opening} all policies are predicted to end the mean job {bound}"
    if share < NOTICED:
        later = worst_s / best_s - 1
        return (
            f"{opening} no policy is predicted to end the mean job sooner than {policy}, and {worst} "
            f"{100 * later:.0f} % later ({format_number(worst_s)} s against {format_number(best_s)} s).{_doubt(later)}"
        )
    return (
        f"{opening} {policy} is predicted to end the mean job {100 * share:.0f} % sooner than "
        f"{first.cell.policy} ({format_number(best_s)} s against {format_number(first.mean_s)} s).{_doubt(share)}"
    )


def _doubt(share: float) -> str:
    return " That is within the simulator's error." if share < MEAN_SHARE else ""


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


def write_page(plan: Plan, path: Path) -> None:
    """Write the page."""
    path.write_text(_render(plan), encoding="utf-8")


def _render(plan: Plan) -> str:
    return find_template(_TEMPLATE, Path(__file__).parent).render(
        title=f"Plan for {Path(plan.recording).name}",
        headline=write_headline(plan.outcomes),
        warnings=["The plan was interrupted: only what was simulated by then is here."] if plan.interrupted else [],
        scope=plan.scope,
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
