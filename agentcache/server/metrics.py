"""Exports the engines' counts as Prometheus metrics; docs/metrics-reference.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from agentcache.engine.rpc.snapshot import EngineSnapshot
from agentcache.engine.views import Histogram, TierCounts
from agentcache.server.metric_families import PREFIX, GetSamples, Samples, counter, gauge, histogram
from agentcache.server.runtime_metrics import RUNTIME_METRICS
from agentcache.server.snapshot_reader import Reading

_SEGMENT_BUCKETS = (2, 3, 4, 5, 6, 8, 12, 16)


class ReadingCollector(Collector):
    """Collects one reading. Its values are absolute, so that several API servers all show the same."""

    def __init__(self, reading: Reading | None) -> None:
        self._reading = reading

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, and how old they are."""
        engines = self._reading.engines if self._reading is not None else ()
        yield _describe_policy(engines)
        yield from (make(engines) for make in (*_METRICS, *RUNTIME_METRICS))
        age = GaugeMetricFamily(f"{PREFIX}snapshot_age_seconds", "Seconds since the engines told these values.")
        if self._reading is not None:
            age.add_metric((), self._reading.age_s)
        yield age


def render_metrics(reading: Reading | None) -> bytes:
    """Render the metrics in the installed client's `CONTENT_TYPE_LATEST` format, as vLLM does its own."""
    return generate_latest(ReadingCollector(reading))


def _count_segments(one: EngineSnapshot) -> Samples:
    if one.segments is None:
        return ()
    counts = one.segments.requests
    buckets = tuple(sum(count for segments, count in counts.items() if segments <= most) for most in _SEGMENT_BUCKETS)
    total = sum(segments * count for segments, count in counts.items())
    return [((), Histogram(_SEGMENT_BUCKETS, buckets, sum(counts.values()), total))]


def _count_bytes(get: Callable[[TierCounts], int]) -> GetSamples:
    return lambda one: () if one.tier is None else [((), get(one.tier) * one.tier.block_bytes)]


_METRICS = (
    counter(
        "fill_tokens_total",
        "Prompt tokens in front of cached blocks that fill requests computed.",
        "segments.fill_tokens",
    ),
    counter(
        "islands_dropped_total",
        "Runs of cached blocks behind a gap that were not reused, because a fill request would have cost more.",
        "segments.islands_dropped",
    ),
    counter(
        "segment_fallbacks_total",
        "Requests that could reuse cached blocks only as a prefix, by reason.",
        "segments.fallbacks",
        "reason",
    ),
    counter(
        "evicted_blocks_total",
        "Blocks whose reusable KV was lost, by cause.",
        lambda one: [((cause,), lost.blocks) for cause, lost in one.evictions.items()],
        "cause",
    ),
    counter(
        "evicted_block_age_seconds_total",
        "Seconds from when blocks were freed to when their KV was lost, summed, by cause.",
        lambda one: [((cause,), lost.age_s) for cause, lost in one.evictions.items()],
        "cause",
    ),
    gauge("lambda", "The evictor's weight of blocks idle beyond the lifespan.", "lambda_value"),
    gauge(
        "prefill_budget_tokens",
        "Prompt tokens that the last step could have had, under adaptive chunking.",
        "prefill_budget",
    ),
    histogram(
        "request_segments",
        "Segments of requests that had gaps filled; a request has one fill request less.",
        _count_segments,
    ),
    gauge("host_blocks", "Blocks that the CPU cache has room for.", "tier.total"),
    gauge("host_used_blocks", "Blocks of the CPU cache that hold KV.", "tier.used"),
    counter("stored_blocks_total", "Blocks copied to the CPU cache.", "tier.stored"),
    counter(
        "stored_bytes_total",
        "Bytes copied to the CPU cache, from all GPUs of the engine, thrown away or not.",
        _count_bytes(lambda tier: tier.stored + tier.overwritten),
    ),
    counter("store_seconds_total", "Seconds that copies to the CPU cache took, of all GPUs.", "tier.store_s"),
    counter("failed_stores_total", "Blocks whose copies to the CPU cache failed.", "tier.failed_stores"),
    counter(
        "overwritten_stores_total",
        "Blocks that the GPU reused before they were copied to the CPU cache.",
        "tier.overwritten",
    ),
    counter(
        "avoided_stores_total",
        "Blocks not copied to the CPU cache, because few like them were ever fetched.",
        "tier.avoided",
    ),
    counter("fetched_blocks_total", "Blocks copied back to the GPU.", "tier.fetched"),
    counter(
        "fetched_bytes_total", "Bytes copied back, to all GPUs of the engine.", _count_bytes(lambda tier: tier.fetched)
    ),
    counter("fetch_seconds_total", "Seconds that copies back to the GPU took, of all GPUs.", "tier.fetch_s"),
    counter("failed_fetches_total", "Blocks whose copies back to the GPU failed.", "tier.failed_fetches"),
    counter("host_evicted_blocks_total", "Blocks lost from the CPU cache.", "tier.evicted"),
    counter("reused_tokens_total", "Prompt tokens of all requests that were cached.", "comparison.reused_tokens"),
    counter(
        "lru_tokens_total",
        "Prompt tokens that a shadow LRU of the same requests would have hit.",
        "comparison.lru_tokens",
    ),
    counter(
        "prefill_saved_seconds_total",
        "Seconds of prefill that requests computed less than under a shadow LRU, estimated.",
        "comparison.saved_s",
    ),
    counter(
        "prefill_lost_seconds_total",
        "Seconds of prefill that other requests computed more than under a shadow LRU, estimated.",
        "comparison.lost_s",
    ),
    counter(
        "observer_failures_total",
        "1 for a part that only explains, failed and is off since; requests are served as before.",
        "observer_failures",
        "observer",
    ),
)


def _describe_policy(engines: Iterable[EngineSnapshot]) -> Metric:
    info = InfoMetricFamily(f"{PREFIX}policy", "The cache policy, and what is on of it.", labels=("engine",))
    for one in engines:
        parts = {part: "on" if one.knobs[part]["enabled"] else "off" for part in ("segments", "chunking")}
        slugs = {"obstacle": one.segments_obstacle_slug, "tier_obstacle": one.tier_obstacle_slug}
        obstacles = {label: slug or "none" for label, slug in slugs.items()}
        info.add_metric((str(one.engine),), {"policy": one.policy, **obstacles, **parts})
    return info
