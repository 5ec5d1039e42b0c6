"""Compares two policies of a report: `agentcache`, or else the last one, with stock vLLM or else the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from agentcache.report.events import RunRecord
from agentcache.report.policy_run import PolicyRun, find_working_set
from agentcache.report.summary import PolicySummary, Throughput
from agentcache.report.table import format_number
from agentcache.report.verdict import Comparison, judge

# What decides which jobs are run.
_JOBS = ("workload", "seed", "jobs")
# The policy whose comparison a reader looks for, where it was run.
_OURS = "agentcache"
# Of the prompt tokens: a base that computes fewer again has lost nothing.
_LEAST_AGAIN = 0.005


def compare_policies(
    records: Sequence[RunRecord], policies: Mapping[str, PolicyRun], figures: Mapping[str, PolicySummary]
) -> str | None:
    """Say what the comparison comes to; None where there is nothing to compare, or not the same jobs."""
    if len(policies) < 2 or len({tuple(getattr(record, name) for name in _JOBS) for record in records}) > 1:
        return None
    base, *others = policies
    policy = next((name for name in others if name.rpartition(": ")[2] == _OURS), others[-1])
    loops = figures[base].throughput, figures[policy].throughput
    if loops[0] and loops[1]:
        return _compare_throughput(base, loops[0], policy, loops[1])
    before, after = (
        {
            job.job: job.finished_s - job.started_s
            for job in sorted(policies[name].finished_jobs, key=attrgetter("started_s"))
        }
        for name in (base, policy)
    )
    if not before or not after:
        return None
    return judge(
        Comparison(
            base=base,
            policy=policy,
            latencies_s=[(before[job], after[job]) for job in before if job in after],
            ttft_p99_s=(figures[base].ttft_s.p99, figures[policy].ttft_s.p99),
            fits=_loses_nothing(policies[base], figures[base]),
            pressure=_find_pressure(records[0], policies[base]),
            simulated=all(record.device.startswith("simulated") for record in records),
        )
    )


def _loses_nothing(run: PolicyRun, figures: PolicySummary) -> bool:
    prompts = sum(request.prompt_tokens for request in run.answered)
    return figures.recomputed_tokens is not None and figures.recomputed_tokens <= _LEAST_AGAIN * prompts


def _find_pressure(record: RunRecord, run: PolicyRun) -> float | None:
    """Return the working set over all caches; None where the size of one is not known."""
    if run.end is None or not run.end.cache_tokens:
        return None
    engines, host_tokens = (
        record.settings.get(name) or default for name, default in (("replicas", 1), ("cpu_tokens", 0))
    )
    if run.end.hit_tokens is not None and not host_tokens:
        return None
    return find_working_set(run.answered, run.jobs) / (run.end.cache_tokens + int(engines) * int(host_tokens))


def _compare_throughput(base: str, before: Throughput, policy: str, after: Throughput) -> str:
    change = f" ({100 * (after.total_tok_s / before.total_tok_s - 1):+.0f} %)" if before.total_tok_s else ""
    rates = [format_number(each.interactivity_p50 or 0.0) for each in (after, before)]
    return (
        f"{policy} served {after.total_tok_s:,.0f} tokens a second and GPU, {base} {before.total_tok_s:,.0f}{change}; "
        f"the median reply came at {rates[0]} tokens a second, under {base} at {rates[1]}."
    )
