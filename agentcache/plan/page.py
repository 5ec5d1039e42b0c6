"""`plan.html`: one page that needs nothing else, with what was predicted, how sure that is, and what it was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentcache.plan.cell import Outcome, describe_cell
from agentcache.plan.known_error import KNOWN_ERROR, MEAN_SHARE
from agentcache.plan.plots import plot_outcomes
from agentcache.plan.table import HEADINGS, LEGEND, NOTICED, group_rows
from agentcache.report.html import find_template

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


def write_headline(plan: Plan) -> str | None:
    """Say in a sentence what the lowest mean is of, beside the first policy with the same caches and engines."""
    first = plan.outcomes[0] if plan.outcomes else None
    if first is None or first.mean_s is None:
        return None
    rivals = [
        (each.mean_s, each.cell.policy)
        for each in plan.outcomes
        if replace(each.cell, policy="") == replace(first.cell, policy="") and each.mean_s is not None
    ]
    # The first of those that are equal.
    best_s, policy = min(rivals, key=lambda each: each[0])
    share = 1 - best_s / first.mean_s
    cache = f"a cache of {first.cell.kv_tokens:,} tokens"
    if first.cell.engines > 1:
        cache += f" in each of {first.cell.engines} engines"
    if len(rivals) > 1 and 1 - best_s / max(rivals)[0] < NOTICED:
        return f"With {cache} all policies are predicted to end the mean job within {NOTICED:.1%} of each other."
    if share < NOTICED:
        return f"With {cache} no policy is predicted to end the mean job sooner than {policy}."
    doubt = " That is within the simulator's error." if share < MEAN_SHARE else ""
    return (
        f"With {cache} {policy} is predicted to end the mean job {share:.0%} sooner than "
        f"{first.cell.policy} ({best_s:.3g} s against {first.mean_s:.3g} s).{doubt}"
    )


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
        headline=write_headline(plan),
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
