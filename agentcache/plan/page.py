"""`plan.html`: one page that needs nothing else, with what was predicted, how sure that is, and what it was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from agentcache.plan.cell import Outcome
from agentcache.plan.known_error import KNOWN_ERROR, MEAN_SHARE
from agentcache.plan.table import COLUMNS, group_rows
from agentcache.report.figure import add_legend, count_format, create_figure, in_style, pick_mark, render_svg, say_empty
from agentcache.report.html import find_template

_TEMPLATE = "plan.html.jinja"
_HEIGHT_IN = 4.0
# Less is no difference, whatever the digits.
_NOTICED = 0.005


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
    """Say in a sentence what the lowest mean is of, beside the first policy with the same caches."""
    single = [outcome for outcome in plan.outcomes if outcome.cell.engines == 1]
    first = single[0] if single else None
    if first is None or first.mean_s is None:
        return None
    caches = first.cell.kv_tokens, first.cell.cpu_tokens
    rivals = [
        (each.mean_s, each.cell.policy)
        for each in single
        if (each.cell.kv_tokens, each.cell.cpu_tokens) == caches and each.mean_s is not None
    ]
    best_s, policy = min(rivals)
    share = 1 - best_s / first.mean_s
    if share < _NOTICED:
        return f"With a cache of {caches[0]:,} tokens no policy is predicted to end the mean job sooner than {policy}."
    doubt = " That is within the simulator's error." if share < MEAN_SHARE else ""
    return (
        f"With a cache of {caches[0]:,} tokens {policy} is predicted to end the mean job {share:.0%} sooner than "
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
    single = [outcome for outcome in plan.outcomes if outcome.cell.engines == 1]
    return find_template(_TEMPLATE, Path(__file__).parent).render(
        title=f"Plan for {Path(plan.recording).name}",
        headline=write_headline(plan),
        warnings=["The plan was interrupted: only what was simulated by then is here."] if plan.interrupted else [],
        scope=plan.scope,
        # Those of the caches are the groups' names.
        columns=COLUMNS[2:],
        groups=group_rows(single),
        known_error=KNOWN_ERROR,
        fewest=list_fewest(plan),
        plots=[
            ("Mean job latency", "Without DRAM, by the size of the cache: lower is better.", _svg(single, "mean")),
            ("Hits", "Without DRAM; the dotted line is a cache without end.", _svg(single, "hits")),
        ],
        problems=[
            f"{each.cell.policy}, {each.cell.kv_tokens:,} tokens: {each.problem}" for each in single if each.problem
        ],
        command=plan.command,
        facts=plan.facts,
        notes=plan.notes,
    )


def _svg(outcomes: Sequence[Outcome], name: str) -> str:
    return render_svg(_plot(outcomes, name), name)


@in_style
def _plot(outcomes: Sequence[Outcome], name: str) -> Figure:
    """Plot means or hits over the cache's size, a line a policy."""
    figure = create_figure(_HEIGHT_IN)
    label = "mean job latency (s)" if name == "mean" else "hits (% of prompt tokens)"
    axes = figure.add_subplot(xlabel="KV cache (tokens)", ylabel=label)
    lines: dict[str, Line2D] = {}
    shown = [each for each in outcomes if not each.cell.cpu_tokens and each.mean_s is not None]
    for index, policy in enumerate(dict.fromkeys(each.cell.policy for each in shown)):
        own = sorted((each for each in shown if each.cell.policy == policy), key=lambda each: each.cell.kv_tokens)
        mark = pick_mark(index)
        values = [each.mean_s if name == "mean" else 100 * each.hit_rate for each in own]
        (lines[policy],) = axes.plot(
            [each.cell.kv_tokens for each in own],
            values,  # type: ignore[arg-type]
            color=mark.colour,
            linestyle=mark.line_style,
            marker=mark.marker,
        )
    if not shown:
        say_empty(axes, "no job finished")
    elif name == "hits":
        axes.axhline(100 * shown[0].most_hits, linestyle=":", color="#999999")
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(count_format())
    add_legend(figure, list(lines.values()), list(lines))
    return figure
