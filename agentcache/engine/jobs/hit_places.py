"""From which cache a request's hits came, as vLLM's KV connectors tell it: counts only, nothing is decided here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from agentcache.engine.jobs.views import HitPlace
from agentcache.engine.vllm.offload import KVConnectorBase_V1
from agentcache.engine.vllm.types import CacheHitSource, PrefillStats, Request

_PLACES: Mapping[CacheHitSource, HitPlace] = {
    CacheHitSource.DEVICE: "gpu",
    CacheHitSource.HOST: "host",
    CacheHitSource.DISK: "disk",
}


def find_places(connector: KVConnectorBase_V1 | None, request: Request, stats: PrefillStats) -> dict[HitPlace, int]:
    """Split the cached tokens of a request that has just been admitted by the place that supplied them.

    vLLM asks its connectors the same for `vllm:prompt_tokens_cached_by_source`, once what they load is known. `gpu` and
    `host` are always there, other places where tokens came from them. What a connector cannot place, or adds up to
    another number, came from `elsewhere`.

    Returns:
        Nothing without a connector: there is one cache alone.
    """
    if connector is None:
        return {}
    places: Counter[HitPlace] = Counter({"gpu": stats.num_local_cached_tokens, "host": 0})
    brought = stats.num_external_cached_tokens
    sources = connector.get_external_cache_hit_sources(request, brought) if brought else {}
    if sum(sources.values()) != brought:
        sources = {CacheHitSource.EXTERNAL_UNSPECIFIED: brought}
    for source, tokens in sources.items():
        places[_PLACES.get(source, "elsewhere")] += tokens
    return dict(places)
