"""The ledger remembers evicted blocks, and how the CPU cache lost its copies of them."""

from __future__ import annotations

from evicted_blocks import make_block
from hand_clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from agentcache.engine.observe.misses import Ledger

HASHES = [block.to_bytes(8, "big") + b"rest" for block in range(13)]


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 12), max_size=6, unique=True)), max_size=30),
    st.integers(1, 2),
)
def test_evicted_blocks_agree_with_a_list(steps: list[tuple[bool, list[int]]], num_blocks: int) -> None:
    clock = Clock()
    ledger, noted = Ledger(num_blocks, clock), list[tuple[float, list[int]]]()
    gone = set[tuple[float, int]]()
    for is_eviction, blocks in steps:
        clock.now_s += 1
        if is_eviction:
            ledger.note_evicted([make_block(block, HASHES[block]) for block in blocks], "")
            noted += [(clock.now_s, blocks)] if blocks else []
            while sum(len(batch) for _, batch in noted) > 4 * num_blocks:
                assert ledger.forgotten_s >= noted.pop(0)[0]
            continue
        latest = {block: at_s for at_s, batch in noted for block in batch}
        expected = {block: at_s for block, at_s in latest.items() if block in blocks and (at_s, block) not in gone}
        found = ledger.take(HASHES, blocks)
        assert {block: eviction.time_s for block, eviction in found.items()} == expected
        # An older eviction of the same block does not come back.
        gone |= {(at_s, block) for at_s, batch in noted for block in batch if block in blocks}


def test_evictions_are_told_without_the_cpu_cache() -> None:
    clock = Clock()
    ledger = Ledger(10, clock, is_on_host=lambda key: key.startswith(HASHES[3]))
    blocks = [make_block(index, HASHES[index]) for index in range(5)]
    ledger.note_not_copied([1], "no room")
    ledger.note_copies_lost([], [blocks[2]])
    ledger.note_evicted(blocks[:4], "mine")
    found = ledger.take(HASHES, [1, 3])
    assert {index: eviction.cause for index, eviction in found.items()} == {1: "no room", 3: "not fetched"}
    ledger.ignore_host()
    ledger.note_evicted(blocks[3:], "mine")
    found = ledger.take(HASHES, range(5))
    assert {index: (eviction.cause, eviction.taker) for index, eviction in found.items()} == {
        0: (None, "mine"),
        2: (None, ""),
        3: (None, "mine"),
        4: (None, "mine"),
    }


def test_a_copy_that_is_lost_last_counts_for_the_cpu_cache() -> None:
    clock = Clock()
    on_host = {HASHES[0], HASHES[1]}
    ledger = Ledger(10, clock, is_on_host=lambda key: key[: len(HASHES[0])] in on_host)
    blocks = [make_block(index, HASHES[index]) for index in range(2)]
    ledger.note_evicted(blocks, "mine")
    clock.now_s += 5
    on_host.clear()
    lost_s = clock.now_s
    # Of others the GPU has evicted none.
    unknown = make_block(7, HASHES[7]).block_hash
    ledger.note_copies_lost([key for key in (blocks[0].block_hash, unknown) if key is not None], [])
    clock.now_s += 5
    found = ledger.take(HASHES, range(13))
    assert [(eviction.cause, eviction.taker) for eviction in found.values()] == [("evicted", ""), (None, "mine")]
    assert found[0].time_s == lost_s
