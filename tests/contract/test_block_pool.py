"""What vLLM's block pool does with free and cached blocks: what the evictors, pins and segments stand on."""

from __future__ import annotations

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from stock import MakeStock
from vllm.v1.core.block_pool import BlockHashToBlockMap
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from agentcache.engine.vllm.internals import POSITION_SLOT

# Three full blocks and a tail.
PROMPT = list(range(1, 3 * BLOCK_SIZE + 6))


def run(lone: LoneScheduler, name: str, prompt: list[int], output_tokens: int = 1) -> None:
    lone.add(name, prompt, output_tokens)
    while not lone.idle:
        lone.step()


@pytest.fixture
def lone(make_stock: MakeStock) -> LoneScheduler:
    """PROMPT is in the cache, and nothing runs."""
    lone = make_stock(blocks=20)
    run(lone, "first", PROMPT)
    return lone


def free_ids(lone: LoneScheduler) -> list[int]:
    return [block.block_id for block in lone.pool.free_block_queue.get_all_free_blocks()]


def test_blocks_without_hash_go_first_or_kv_is_evicted(lone: LoneScheduler) -> None:
    unhashed = [block for block in lone.pool.free_block_queue.get_all_free_blocks() if block.block_hash is None]
    assert free_ids(lone)[: len(unhashed)] == [block.block_id for block in unhashed]


def test_tails_are_freed_before_heads_or_lru_differs(lone: LoneScheduler) -> None:
    cached = lone.find_blocks(PROMPT)
    assert len(cached) == 3
    assert free_ids(lone)[-3:] == cached[::-1]


def test_the_null_block_is_never_free_or_windows_break(lone: LoneScheduler) -> None:
    assert lone.pool.null_block.is_null
    assert lone.pool.null_block.block_id not in free_ids(lone)
    assert len(free_ids(lone)) == lone.pool.get_num_free_blocks() == 19


def test_a_new_user_loses_the_hash_or_others_hit_its_kv(lone: LoneScheduler) -> None:
    taken = lone.pool.get_new_blocks(19)
    assert {(block.block_hash, block.ref_cnt) for block in taken} == {(None, 1)}
    assert lone.find_blocks(PROMPT) == []
    lone.pool.free_blocks(taken)


def test_too_many_new_blocks_raise_or_a_queue_runs_dry(lone: LoneScheduler) -> None:
    with pytest.raises(ValueError, match="Cannot get 20 free blocks"):
        lone.pool.get_new_blocks(20)
    assert len(lone.find_blocks(PROMPT)) == 3


def test_a_hit_block_is_not_free_or_it_is_evicted_in_use(lone: LoneScheduler) -> None:
    block = lone.pool.blocks[lone.find_blocks(PROMPT)[0]]
    lone.pool.touch([block])
    lone.pool.touch([block])
    assert block.block_id not in free_ids(lone)
    lone.pool.free_blocks([block])
    assert (block.ref_cnt, block.block_id in free_ids(lone)) == (1, False)
    lone.pool.free_blocks([block])
    assert (block.ref_cnt, free_ids(lone)[-1]) == (0, block.block_id)


def test_evicted_by_id_stay_free_or_blocks_are_lost(lone: LoneScheduler) -> None:
    cached = lone.find_blocks(PROMPT)
    lone.pool.evict_blocks({cached[1]})
    assert lone.find_blocks(PROMPT) == cached[:1]
    assert cached[1] in free_ids(lone)
    assert lone.pool.get_num_free_blocks() == 19


def test_a_block_knows_its_end_or_costs_are_of_another(lone: LoneScheduler) -> None:
    ends = [getattr(lone.pool.blocks[number], POSITION_SLOT) for number in lone.find_blocks(PROMPT)]
    assert ends == [BLOCK_SIZE, 2 * BLOCK_SIZE, 3 * BLOCK_SIZE]


def test_the_queue_is_asked_each_time_or_ours_is_passed_by(
    lone: LoneScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("popleft_n", "append_n", "prepend_n", "remove"):
        own = getattr(FreeKVCacheBlockQueue, name)
        monkeypatch.setattr(
            FreeKVCacheBlockQueue, name, lambda self, what, own=own, name=name: [asked.append(name), own(self, what)][1]
        )
    lone.pool.free_block_queue = FreeKVCacheBlockQueue(lone.pool.free_block_queue.get_all_free_blocks())
    run(lone, "second", PROMPT)
    assert set(asked) == {"popleft_n", "append_n", "prepend_n", "remove"}


def test_equal_blocks_are_kept_apart_or_a_copy_is_lost() -> None:
    cache, one, other = BlockHashToBlockMap(), KVCacheBlock(1), KVCacheBlock(2)
    key: bytes = b"hash"
    cache.insert(key, one)  # type: ignore[arg-type]
    cache.insert(key, other)  # type: ignore[arg-type]
    assert cache.pop(key, 1) is one  # type: ignore[arg-type]
    assert cache.get_one_block(key) is other  # type: ignore[arg-type]
    assert cache.pop(key, 1) is None  # type: ignore[arg-type]


def test_a_reset_forgets_every_hash_or_old_kv_is_hit(lone: LoneScheduler) -> None:
    assert lone.scheduler.reset_prefix_cache()
    assert lone.find_blocks(PROMPT) == []
    assert {block.block_hash for block in lone.pool.blocks} == {None}


def test_a_reset_fails_while_kv_is_used_or_holds_block_it(lone: LoneScheduler) -> None:
    lone.add("runs", PROMPT, 8)
    lone.step()
    assert not lone.scheduler.reset_prefix_cache()
    assert lone.scheduler.reset_prefix_cache(reset_running_requests=True)
