"""Checks that vLLM's reference counts say what their owners hold."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable
from itertools import chain

from agentcache.engine.vllm.types import KVCacheBlock, KVCacheManager
from agentcache.errors import IntegrityError


def count_in_tables(manager: KVCacheManager) -> Counter[int]:
    """Count how often each block stands in a request's block table, by its id."""
    tables = chain.from_iterable(each.req_to_blocks.values() for each in manager.coordinator.single_type_managers)
    return Counter(block.block_id for block in chain.from_iterable(tables))


def check_references(blocks: Iterable[KVCacheBlock], owned: Counter[int], *, others_hold: bool = False) -> None:
    """Raise IntegrityError when a block has another reference count than its owners, counted by its id, give it.

    `others_hold`: there are owners that cannot be asked, so a block may have more references than that.
    """
    agrees = operator.ge if others_hold else operator.eq
    wrong = [each.block_id for each in blocks if not each.is_null and not agrees(each.ref_cnt, owned[each.block_id])]
    if wrong:
        raise IntegrityError(f"blocks with another reference count than their owners give: {wrong[:20]}")
