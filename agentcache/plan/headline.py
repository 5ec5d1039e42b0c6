"""Says what a plan comes to, a sentence for each size of CPU cache: how much sooner the best policy ends jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentcache.plan.cell import Outcome, describe_caches
from agentcache.plan.known_error import MEAN_SHARE
from agentcache.plan.table import NOTICED
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
