"""Computes the figures of a run from its record and events: what `summary.json` holds (docs/summary.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from agentcache.report.events import JobEvent, RequestEvent, RunRecord, ToolCallEvent
from agentcache.report.policy_run import PolicyRun


class Throughput(BaseModel):
    """Tokens per second and GPU, of the requests answered within the window; and tokens per second and user.

    A user's rate is 1 ÷ a percentile of the time per output token: P90 is that of the slowest tenth. `normalized` has
    the wait for the first token in it. `infinite_hit_rate` is the token hit rate of a cache without evictions.
    `jobs_ended` are the sessions that finished within the window, wherever they began.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    window_s: float
    gpus: int
    input_tok_s: float
    output_tok_s: float
    total_tok_s: float
    interactivity_p50: float | None
    interactivity_p90: float | None
    normalized_p50: float | None
    normalized_p90: float | None
    infinite_hit_rate: float | None
    turns_per_min: float | None = None
    jobs_ended: int | None = None
    gpu_s_per_job: float | None = None


def measure_throughput(run: PolicyRun) -> Throughput | None:
    """Measure a closed loop; None for other runs, and for one that broke off before it was measured."""
    if run.end is None or run.end.window_s is None:
        return None
    begin_s, end_s = run.end.window_s
    requests = run.answered
    seconds = (end_s - begin_s) * run.end.gpus
    prompt = sum(request.prompt_tokens for request in requests)
    output = sum(request.output_tokens for request in requests)
    infinite = sum(request.infinite_tokens or 0 for request in requests)
    ended = sum(job.status == "finished" and begin_s <= job.finished_s <= end_s for job in run.jobs)
    return Throughput(
        window_s=end_s - begin_s,
        gpus=run.end.gpus,
        input_tok_s=prompt / seconds,
        output_tok_s=output / seconds,
        total_tok_s=(prompt + output) / seconds,
        interactivity_p50=_rate(requests, _token_s, 50),
        interactivity_p90=_rate(requests, _token_s, 90),
        normalized_p50=_rate(requests, _whole_token_s, 50),
        normalized_p90=_rate(requests, _whole_token_s, 90),
        infinite_hit_rate=infinite / prompt if prompt else None,
        turns_per_min=60 * len(requests) / (end_s - begin_s),
        jobs_ended=ended,
        gpu_s_per_job=seconds / ended if ended else None,
    )


def _token_s(request: RequestEvent) -> float | None:
    return request.tpot_s


def _whole_token_s(request: RequestEvent) -> float | None:
    return (request.finished_s - request.sent_s) / request.output_tokens if request.output_tokens else None


def _rate(
    requests: Iterable[RequestEvent], token_s: Callable[[RequestEvent], float | None], percentile: float
) -> float | None:
    known = [seconds for request in requests if (seconds := token_s(request)) is not None]
    slow = float(np.percentile(known, percentile)) if known else 0.0
    return 1 / slow if slow else None


_MOST_TENANTS = 20
# A shorter mean wait is not worth a row.
_LEAST_WAIT_S = 0.01


class _Figures(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Distribution(_Figures):
    """Mean, percentiles (linear interpolation) and worst of a sample; all None for an empty one."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class TenantFigures(_Figures):
    """Jain's index of the tenants' mean job latencies: 1 where all are equal, 1 ÷ their number where one has it all.

    `job_latency_s` has those means, in seconds, of the tenants with the most jobs.
    """

    jain_index: float
    job_latency_s: dict[str, float]


class PolicySummary(_Figures):
    """One policy's figures. Times in seconds, rates from 0 to 1, None where there is no data."""

    job_latency_s: Distribution
    ttft_s: Distribution
    tpot_s: Distribution
    queue_s: Distribution
    tool_s: Distribution
    token_hit_rate: float | None
    block_hit_rate: float | None
    request_hit_rate: float | None
    gpu_hit_rate: float | None = None
    host_hit_rate: float | None = None
    disk_hit_rate: float | None = None
    recomputed_tokens: int | None
    elsewhere_tokens: int | None = None
    jobs: int
    failed: int
    interrupted: int
    turns: int
    makespan_s: float | None
    preemptions: int | None
    retries: int
    diverged_prompts: int
    engine_startup_s: float | None
    prefill_s: float | None = None
    evictions: dict[str, int] | None = None
    waits_s: dict[str, float] | None = None
    busiest_over_mean: float | None = None
    throughput: Throughput | None = None
    tenants: TenantFigures | None = None

    @property
    def finished(self) -> int:
        """Return the number of jobs that finished."""
        return self.jobs - self.failed - self.interrupted


class Summary(_Figures):
    """Figures by policy, and what was run: one record, or one by run name where several runs are compared.

    `verdict` is None where there is nothing to compare.
    """

    policies: dict[str, PolicySummary]
    run: RunRecord | dict[str, RunRecord]
    verdict: str | None = None


def summarize(run: RunRecord | dict[str, RunRecord], policies: Mapping[str, PolicyRun]) -> Summary:
    """Summarize one run, or several by name. A run that broke is summarized as far as it got."""
    return Summary(policies={policy: summarize_policy(events) for policy, events in policies.items()}, run=run)


def summarize_policy(run: PolicyRun) -> PolicySummary:
    """Summarize one policy, as far as it got."""
    answered = run.answered
    # Of the requests for which the server told what it cached: (cached, prompt) tokens.
    hits = [(request.cached_tokens, request.prompt_tokens) for request in answered if request.cached_tokens is not None]
    token_hit_rate = _share(sum(cached for cached, _ in hits), sum(prompt for _, prompt in hits))
    by_place = _split(token_hit_rate, run.end.hit_tokens if run.end else None)
    return PolicySummary(
        job_latency_s=_describe([job.finished_s - job.started_s for job in run.finished_jobs]),
        ttft_s=_describe([request.ttft_s for request in answered]),
        tpot_s=_describe([request.tpot_s for request in answered]),
        queue_s=_describe([request.queue_s for request in answered]),
        tool_s=_describe([call.finished_s - call.started_s for call in run.tool_calls]),
        token_hit_rate=token_hit_rate,
        gpu_hit_rate=by_place.get("gpu"),
        host_hit_rate=by_place.get("host"),
        disk_hit_rate=by_place.get("disk"),
        block_hit_rate=_block_hit_rate(hits, run.end.block_size if run.end else None),
        request_hit_rate=_share(sum(cached > 0 for cached, _ in hits), len(hits)),
        recomputed_tokens=_add_known([request.recomputed_tokens for request in answered]),
        elsewhere_tokens=_add_known([request.elsewhere_tokens for request in answered]),
        jobs=len(run.jobs),
        failed=sum(job.status == "failed" for job in run.jobs),
        interrupted=sum(job.status == "interrupted" for job in run.jobs),
        turns=len(answered),
        makespan_s=_makespan(run),
        preemptions=run.end.preemptions if run.end else None,
        retries=sum(request.retries for request in run.requests),
        diverged_prompts=sum(request.diverged_at is not None for request in run.requests),
        engine_startup_s=run.end.engine_startup_s if run.end else None,
        prefill_s=run.end.prefill_s if run.end else None,
        evictions=run.end.evictions if run.end else None,
        waits_s=_share_waits(run.end.waits_s, len(answered)) if run.end else None,
        busiest_over_mean=_find_imbalance(run.end.busy_s) if run.end else None,
        throughput=measure_throughput(run),
        tenants=_compare_tenants(run.finished_jobs),
    )


def _compare_tenants(jobs: Sequence[JobEvent]) -> TenantFigures | None:
    """Tell how the tenants fared; None where the jobs have none."""
    latencies: defaultdict[str, list[float]] = defaultdict(list)
    for job in jobs:
        if job.tenant is not None:
            latencies[job.tenant].append(job.finished_s - job.started_s)
    if not latencies:
        return None
    means = {tenant: float(np.mean(seconds)) for tenant, seconds in latencies.items()}
    squares = sum(mean_s**2 for mean_s in means.values())
    jain = sum(means.values()) ** 2 / (len(means) * squares) if squares else 1.0
    largest = sorted(latencies, key=lambda tenant: -len(latencies[tenant]))[:_MOST_TENANTS]
    return TenantFigures(jain_index=jain, job_latency_s={tenant: means[tenant] for tenant in largest})


def _share_waits(waits_s: Mapping[str, float] | None, requests: int) -> dict[str, float] | None:
    """Return the mean wait of a request, by reason; without reasons that hardly any waited for."""
    if waits_s is None or not requests:
        return None
    means = {reason: seconds / requests for reason, seconds in waits_s.items()}
    return {reason: mean_s for reason, mean_s in means.items() if mean_s >= _LEAST_WAIT_S}


def _describe(sample: Sequence[float | None]) -> Distribution:
    known = [value for value in sample if value is not None]
    if not known:
        return Distribution()
    p50, p90, p95, p99 = (float(value) for value in np.percentile(known, [50, 90, 95, 99]))
    return Distribution(mean=float(np.mean(known)), p50=p50, p90=p90, p95=p95, p99=p99, max=max(known))


def _add_known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _split(hit_rate: float | None, hit_tokens: Mapping[str, int] | None) -> dict[str, float]:
    """Split the hit rate as the hits of all requests were, by place; empty where there is one place.

    What is neither the GPU's nor a disk's is the host's. There is a disk where something came from it.
    """
    if hit_rate is None or hit_tokens is None:
        return {}
    gpu, disk = hit_tokens.get("gpu", 0), hit_tokens.get("disk", 0)
    total = sum(hit_tokens.values())
    places = {"gpu": gpu, "host": total - gpu - disk} | ({"disk": disk} if disk else {})
    return {place: hit_rate * tokens / total if total else 0.0 for place, tokens in places.items()}


def _find_imbalance(busy_s: Sequence[float] | None) -> float | None:
    if busy_s is None or len(busy_s) < 2 or not sum(busy_s):
        return None
    return max(busy_s) * len(busy_s) / sum(busy_s)


def _block_hit_rate(hits: Sequence[tuple[int, int]], block_size: int | None) -> float | None:
    if not block_size:
        return None
    return _share(sum(cached // block_size for cached, _ in hits), sum(prompt // block_size for _, prompt in hits))


def _makespan(run: PolicyRun) -> float | None:
    if not run.requests:
        return None
    timed: list[RequestEvent | ToolCallEvent | JobEvent] = [*run.requests, *run.tool_calls, *run.jobs]
    return max(event.finished_s for event in timed) - min(request.sent_s for request in run.requests)
