"""`plan.html`: one page that needs nothing else, with what was predicted, how sure that is, and what it was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcache.plan.cell import Outcome, describe_cell
from agentcache.plan.headline import write_headline
from agentcache.plan.known_error import KNOWN_ERROR
from agentcache.plan.plots import plot_outcomes
from agentcache.plan.table import HEADINGS, LEGEND, group_rows
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
