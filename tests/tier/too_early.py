"""The fault that a store's checks are there for: what a step computes is stored beside that step."""

from __future__ import annotations

from typing import Any
from unittest import mock

from agentcache.engine.cpu_cache.host_cache import Store
from agentcache.engine.cpu_cache.storing import LookTimes, Storing
from agentcache.engine.cpu_cache.tier import Tier, find_filled


def choose_too_early(tier: Tier, step: Any) -> Store | None:
    """Begin a store of the blocks that the step is to fill: their hashes stand on them, their KV is yet to come."""
    scheduler = tier._scheduler
    blocks = scheduler.kv_cache_manager.block_pool.blocks
    filled = [blocks[block_id] for block_id in sorted(find_filled(scheduler, step))]
    holds = tier.host.map.holds
    under_way = {copy.key for store in tier.copies.stores.values() for copy in store.copies}
    keyed = {block.block_hash: block for block in filled if block.block_hash is not None}
    chosen = {key: block for key, block in keyed.items() if not holds(key) and key not in under_way}
    with (
        mock.patch.object(Storing, "_choose", return_value=chosen),
        mock.patch.object(LookTimes, "is_due", return_value=True),
    ):
        return tier.storing.begin(idle=False)


def begin_unchecked(tier: Tier, step: Any) -> Any:
    """Stand in for `Tier.begin_copies`, which would refuse such a store."""
    return tier.copies.begin(choose_too_early(tier, step))
