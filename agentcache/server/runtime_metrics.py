"""Lists the metrics of the agent runtime: jobs, tools and pins."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentcache.engine.rpc.snapshot import EngineSnapshot
from agentcache.engine.views import PLACE_OF, Histogram, LossCause, RuntimeCounts
from agentcache.server.metric_families import (
    GetSamples,
    Samples,
    by_reason,
    counter,
    gauge,
    histogram,
    histograms,
    label,
)


def _all(get: Callable[[RuntimeCounts], Samples]) -> GetSamples:
    return lambda one: get(one.runtime) if one.runtime is not None else ()


def _one(get: Callable[[RuntimeCounts], float]) -> GetSamples:
    return _all(lambda runtime: [((), get(runtime))])


def _of(get: Callable[[RuntimeCounts], Histogram]) -> Callable[[EngineSnapshot], Histogram | None]:
    return lambda one: get(one.runtime) if one.runtime is not None else None


def _waits(one: EngineSnapshot) -> list[tuple[tuple[str, ...], Histogram]]:
    waits = one.runtime.waits if one.runtime is not None else {}
    return [((label(reason),), counts) for reason, counts in sorted(waits.items())]


def _by_place(counts: Mapping[LossCause, int]) -> Samples:
    return [
        ((PLACE_OF[cause], *labels), value)
        for cause in sorted(counts)
        for labels, value in by_reason({cause: counts[cause]})
    ]


RUNTIME_METRICS = (
    gauge("jobs", "Jobs that the runtime remembers.", _one(lambda runtime: runtime.jobs)),
    counter(
        "jobs_ended_total", "Jobs that ended, by cause.", _all(lambda runtime: by_reason(runtime.jobs_ended)), "cause"
    ),
    histogram(
        "job_latency_seconds",
        "Seconds from a job's first arrival to its last reply, tools included, of jobs that ended.",
        _of(lambda runtime: runtime.job_latency_s),
    ),
    histogram(
        "answer_latency_seconds",
        "Seconds from a question to its answer, tools included: a whole reply that calls no tool.",
        _of(lambda runtime: runtime.answer_latency_s),
    ),
    histograms(
        "turn_wait_seconds",
        "Seconds from a turn's arrival until it ran, by what held it, of turns that it held for 1 ms or more.",
        _waits,
        "reason",
    ),
    histogram("job_turns", "Turns of jobs that ended.", _of(lambda runtime: runtime.job_turns)),
    counter(
        "tool_gap_seconds_total",
        "Seconds from the end of a turn that called this tool to the job's next request, summed.",
        _all(lambda runtime: [((tool,), gaps.seconds) for tool, gaps in runtime.tools.items()]),
        "tool",
    ),
    counter(
        "tool_gaps_total",
        "Turns that called this tool and were followed by another.",
        _all(lambda runtime: [((tool,), gaps.gaps) for tool, gaps in runtime.tools.items()]),
        "tool",
    ),
    gauge("pins", "Pins that live.", _one(lambda runtime: runtime.pins.live)),
    gauge("pinned_blocks", "Blocks that pins keep.", _one(lambda runtime: runtime.pins.blocks)),
    gauge("pin_budget_blocks", "Blocks that pins may keep together.", _one(lambda runtime: runtime.pins.budget_blocks)),
    counter("pins_begun_total", "Pins begun.", _one(lambda runtime: runtime.pins.began)),
    counter("pins_ended_total", "Pins ended, by cause.", _all(lambda runtime: by_reason(runtime.pins.ended)), "cause"),
    counter(
        "pin_held_seconds_total",
        "Seconds that ended pins lasted, summed.",
        _one(lambda runtime: runtime.pins.held_s),
    ),
    counter("prompt_tokens_total", "Prompt tokens of jobs.", _one(lambda runtime: runtime.prompt_tokens)),
    counter("hit_tokens_total", "Those that came from the cache.", _one(lambda runtime: runtime.hit_tokens)),
    counter(
        "hit_tokens_by_place_total",
        "Prompt tokens of jobs that came from the GPU's cache, or were fetched from elsewhere, by place.",
        _all(lambda runtime: by_reason(runtime.hits)),
        "place",
    ),
    counter(
        "recomputed_tokens_total",
        "Prompt tokens that repeat the job's last turn and were no longer cached.",
        _one(lambda runtime: runtime.recomputed_tokens),
    ),
    counter(
        "missed_tokens_total",
        "Prompt tokens of jobs that were not cached, by reason.",
        _all(lambda runtime: by_reason(runtime.missed_tokens)),
        "reason",
    ),
    counter(
        "evicted_tokens_total",
        "Those that were evicted, by place and reason, where there is a CPU cache.",
        _all(lambda runtime: _by_place(runtime.evicted_from)),
        "place",
        "reason",
    ),
    counter(
        "changed_prompts_total",
        "Prompts that left the last turn of their job, by what changed.",
        _all(lambda runtime: by_reason(runtime.changed_prompts)),
        "cause",
    ),
    counter(
        "found_jobs_total",
        "Requests of jobs, by how their job was found.",
        _all(lambda runtime: by_reason(runtime.found_jobs)),
        "how",
    ),
    counter("job_log_lost_total", "Jobs that are missing in the job log.", _one(lambda runtime: runtime.log_lost)),
    counter(
        "held_turns_total",
        "Turns that waited to compute their contexts, because jobs wanted more than the caches hold.",
        _one(lambda runtime: runtime.held_turns),
    ),
)
