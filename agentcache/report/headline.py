"""Says in one sentence what a run shows: how the mean job fared against the first policy, and why."""

from __future__ import annotations

from collections.abc import Mapping

from agentcache.report.summary import PolicySummary
from agentcache.report.table import format_number
from agentcache.report.throughput import Throughput

# What a reader looks for, where it was run.
_OURS = "agentcache"
# Runs of one policy differ by about this much.
_ALIKE = 0.01


def write_headline(policies: Mapping[str, PolicySummary]) -> str | None:
    """Compare `agentcache`, or else the last policy, with the first; None where there is nothing to compare."""
    names = list(policies)
    if len(names) < 2:
        return None
    first, shown = names[0], _OURS if _OURS in names[1:] else names[-1]
    base, ours = policies[first], policies[shown]
    if base.throughput and ours.throughput:
        return _compare_throughput(first, base.throughput, shown, ours.throughput)
    if not base.job_latency_s.mean or ours.job_latency_s.mean is None:
        return None
    return f"{_compare_latency(first, base, shown, ours)}{_explain(base, ours)}."


def _compare_throughput(first: str, base: Throughput, shown: str, ours: Throughput) -> str:
    change = f" ({100 * (ours.total_tok_s / base.total_tok_s - 1):+.0f} %)" if base.total_tok_s else ""
    before, after = (format_number(each.interactivity_p50 or 0.0) for each in (base, ours))
    return (
        f"{shown} served {ours.total_tok_s:,.0f} tokens per second and GPU, {first} {base.total_tok_s:,.0f}{change}; "
        f"the median reply came at {after} tokens a second, under {first} at {before}."
    )


def _compare_latency(first: str, base: PolicySummary, shown: str, ours: PolicySummary) -> str:
    before, after = base.job_latency_s.mean or 0.0, ours.job_latency_s.mean or 0.0
    seconds = f"{format_number(after)} s against {format_number(before)} s"
    change = after / before - 1
    if abs(change) < _ALIKE:
        return f"{shown} finished the mean job as fast as {first} ({seconds})"
    direction = "sooner" if change < 0 else "later"
    return f"{shown} finished the mean job {100 * abs(change):.0f} % {direction} than {first} ({seconds})"


def _explain(base: PolicySummary, ours: PolicySummary) -> str:
    """Explain by what was recomputed: that is what a cache policy has in its hands."""
    if base.recomputed_tokens is None or ours.recomputed_tokens is None:
        return ""
    if base.recomputed_tokens == ours.recomputed_tokens == 0:
        return ": the cache was large enough for all jobs, so no policy could gain"
    return f": it recomputed {ours.recomputed_tokens:,} tokens instead of {base.recomputed_tokens:,}"
