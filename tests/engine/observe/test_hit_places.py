"""Hits by place, as vLLM's KV connectors tell sources."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.metrics.stats import PrefillStats

from agentcache.engine.observe.stats import find_places


def find(local: int, brought: int, sources: dict[CacheHitSource, int]) -> dict[str, int]:
    def tell(_: Any, tokens: int) -> dict[CacheHitSource, int]:
        assert tokens == brought > 0
        return sources

    connector: Any = SimpleNamespace(get_external_cache_hit_sources=tell)
    stats = PrefillStats()
    stats.set(1000, local, brought)
    request: Any = None
    return dict(find_places(connector, request, stats))


def test_each_source_of_vllms_has_a_place() -> None:
    for source in CacheHitSource:
        assert sum(find(16, 32, {source: 32}).values()) == 48
    assert find(16, 64, {CacheHitSource.DISK: 48, CacheHitSource.HOST: 16}) == {"gpu": 16, "host": 16, "disk": 48}
    assert find(0, 48, {CacheHitSource.P2P: 16, CacheHitSource.EXTERNAL_UNSPECIFIED: 32})["elsewhere"] == 48


@pytest.mark.parametrize("told", [{}, {CacheHitSource.DISK: 47}, {CacheHitSource.DISK: 49}])
def test_sources_that_do_not_add_up_are_not_believed(told: dict[CacheHitSource, int]) -> None:
    assert find(16, 48, told) == {"gpu": 16, "host": 0, "elsewhere": 48}


def test_a_connector_is_asked_only_for_what_it_brought() -> None:
    assert find(16, 0, {CacheHitSource.DISK: 16}) == {"gpu": 16, "host": 0}


def test_without_a_connector_there_are_no_places() -> None:
    request: Any = None
    stats = PrefillStats()
    stats.set(100, 16, 0)
    assert find_places(None, request, stats) == {}
