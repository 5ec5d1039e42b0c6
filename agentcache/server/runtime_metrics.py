"""Lists the metrics of the agent runtime: jobs, tools and pins."""

from __future__ import annotations

from collections.abc import Mapping

from agentcache.engine.rpc.snapshot import EngineSnapshot
from agentcache.engine.views import PLACE_OF, ToolCounts
from agentcache.server.metric_families import GetSamples, Samples, by_reason, counter, gauge, histogram


def _tools(one: EngineSnapshot) -> Mapping[str, ToolCounts]:
    return one.runtime.tools if one.runtime is not None else {}


def _by_place(one: EngineSnapshot) -> Samples:
    counts = one.runtime.evicted_from if one.runtime is not None else {}
    return [
        ((PLACE_OF[cause], *labels), value)
        for cause in sorted(counts)
        for labels, value in by_reason({cause: counts[cause]})
    ]


def _tenants(name: str) -> GetSamples:
    def get(one: EngineSnapshot) -> Samples:
        tenants = one.runtime.tenants if one.runtime is not None else {}
        return [((tenant,), getattr(counts, name)) for tenant, counts in tenants.items()]

    return get


RUNTIME_METRICS = (
    gauge("jobs", "Jobs that the engine remembers.", "runtime.jobs"),
    counter("jobs_ended_total", "Jobs that ended, by cause.", "runtime.jobs_ended", "cause"),
    histogram(
        "job_latency_seconds",
        "Seconds from a job's first arrival to its last reply, tools included, of jobs that ended.",
        "runtime.job_latency_s",
    ),
    histogram(
        "answer_latency_seconds",
        "Seconds from a question to the reply that calls no tool, tools included.",
        "runtime.answer_latency_s",
    ),
    histogram(
        "turn_wait_seconds",
        "Seconds from a turn's arrival until it ran, by what held it, of turns that it held for 1 ms or more.",
        "runtime.waits",
        "reason",
    ),
    histogram("job_turns", "Turns of jobs that ended.", "runtime.job_turns"),
    counter(
        "tool_gap_seconds_total",
        "Seconds from the end of a turn that called this tool to the job's next request, summed.",
        lambda one: [((tool,), gaps.seconds) for tool, gaps in _tools(one).items()],
        "tool",
    ),
    counter(
        "tool_gaps_total",
        "Turns that called this tool and were followed by another.",
        lambda one: [((tool,), gaps.gaps) for tool, gaps in _tools(one).items()],
        "tool",
    ),
    counter("tenant_turns_total", "Turns that ended, by tenant.", _tenants("turns"), "tenant"),
    counter(
        "tenant_gpu_seconds_total",
        "Seconds of GPUs that they took, by the cost model, as if each had run alone.",
        _tenants("gpu_s"),
        "tenant",
    ),
    counter("tenant_wait_seconds_total", "Seconds that they waited, summed.", _tenants("wait_s"), "tenant"),
    counter("tenant_jobs_total", "Jobs that ended, by tenant.", _tenants("jobs"), "tenant"),
    counter(
        "tenant_job_latency_seconds_total",
        "Seconds from their first arrivals to their last replies, summed.",
        _tenants("job_latency_s"),
        "tenant",
    ),
    gauge("pins", "Pins that live: KV of jobs whose tools run, kept for a time.", "runtime.pins.live"),
    gauge("pinned_blocks", "Blocks that pins keep.", "runtime.pins.blocks"),
    gauge("pin_budget_blocks", "Blocks that pins may keep together.", "runtime.pins.budget_blocks"),
    counter("pins_begun_total", "Pins begun.", "runtime.pins.began"),
    counter("pins_ended_total", "Pins ended, by cause.", "runtime.pins.ended", "cause"),
    counter("pin_held_seconds_total", "Seconds that ended pins lasted, summed.", "runtime.pins.held_s"),
    counter("prompt_tokens_total", "Prompt tokens of jobs.", "runtime.prompt_tokens"),
    counter("hit_tokens_total", "Prompt tokens of jobs that came from the cache.", "runtime.hit_tokens"),
    counter(
        "hit_tokens_by_place_total",
        "Prompt tokens of jobs that came from the cache, by place, where there are two caches.",
        "runtime.hits",
        "place",
    ),
    counter(
        "recomputed_tokens_total",
        "Prompt tokens that repeat the job's last turn and were no longer cached.",
        "runtime.recomputed_tokens",
    ),
    counter(
        "missed_tokens_total",
        "Prompt tokens of jobs that were not cached, by reason.",
        "runtime.missed_tokens",
        "reason",
    ),
    counter(
        "evicted_tokens_total",
        "Prompt tokens of jobs that were evicted, by place and reason, of two caches.",
        _by_place,
        "place",
        "reason",
    ),
    counter(
        "changed_prompts_total",
        "Prompts that left the last turn of their job, by what changed.",
        "runtime.changed_prompts",
        "cause",
    ),
    counter("found_jobs_total", "Requests of jobs, by how their job was found.", "runtime.found_jobs", "how"),
    counter("job_log_lost_total", "Jobs that are missing in the job log.", "runtime.log_lost"),
    counter("spans_lost_total", "Spans of jobs that the collector did not take.", "runtime.spans_lost"),
    counter(
        "held_turns_total",
        "Turns that waited to compute their contexts, because jobs wanted more than the caches hold.",
        "runtime.held_turns",
    ),
)
