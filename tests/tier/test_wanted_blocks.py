from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock, make_block_hash_with_group_id

from agentcache.engine.cached_blocks import CachedBlockMap, WatchedBlockMap
from agentcache.engine.cpu_cache.fetching import Fetching
from agentcache.policy.link_profile import Link
from agentcache.policy.price import RecomputeCost
from agentcache.policy.reuse_plan import FetchCosts, SegmentCosts, plan_fetch

BLOCKS = 12
KEYS = [make_block_hash_with_group_id(BlockHash(bytes([number]) * 32), 0) for number in range(BLOCKS)]
COSTS = SegmentCosts(RecomputeCost(0.01, 1.0, 1e-9), row_s=2.0, block_size=16)
LINK = Link(latency_s=3.0, block_s=3.4)
MAX_GAPS = 2
RUNNING = 2


class _Request:
    """May be a key of a weak dictionary."""

    mm_features = ()


def find_slowly(on_host: WatchedBlockMap, on_gpu: WatchedBlockMap, limit: int) -> list[int]:
    """Find what is worth fetching, by where each block is."""
    cached = bytes(map(on_gpu.holds, KEYS))
    here = bytes(on_host.holds(key) and not on_gpu.holds(key) for key in KEYS)
    costs = FetchCosts(COSTS, LINK, compute_price=1 + RUNNING)
    plan = plan_fetch(cached[:limit], here[:limit], costs, MAX_GAPS)
    return [index for run in plan for index in range(*run)]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, BLOCKS - 1)), max_size=60),
    st.integers(1, BLOCKS),
)
def test_wanted_blocks_are_those_of_the_caches_now(changes: list[tuple[bool, bool, int]], limit: int) -> None:
    on_host, on_gpu = WatchedBlockMap(), WatchedBlockMap()
    finder = SimpleNamespace(limit_of=lambda _: limit, block_size=COSTS.block_size)
    filler = SimpleNamespace(finder=finder, gaps_left=lambda _: MAX_GAPS, costs=COSTS)
    host = SimpleNamespace(map=on_host)
    scheduler = SimpleNamespace(kv_cache_manager=SimpleNamespace(block_pool=None), running=[None] * RUNNING)
    parts: dict[str, Any] = {"queue": None, "storing": SimpleNamespace(host=host), "filler": filler}
    fetching = Fetching(cast(Any, scheduler), link=LINK, **parts)
    request = cast(Any, _Request())
    watched = on_gpu.watchers["waits"] = CachedBlockMap([KEYS], on_gpu)
    for is_on_host, comes, index in changes:
        cache = on_host if is_on_host else on_gpu
        if comes:
            cache.insert(KEYS[index], KVCacheBlock(index))
        else:
            cache.pop(KEYS[index], index)
        wanted = find_slowly(on_host, on_gpu, limit)
        assert fetching.find_wanted(request, watched) == wanted
        # What was found before is found again.
        assert fetching.find_wanted(request, watched) == wanted
