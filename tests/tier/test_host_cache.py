"""The CPU cache by itself, against a plain dictionary."""

from __future__ import annotations

from collections.abc import Container
from operator import itemgetter

from hand_clock import Clock
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id

from agentcache._evictor import AsymCacheEvictor, Evictor, FreeContext, LruEvictor, ReturnTimeEvictor, ReturnWaits
from agentcache.engine.cpu_cache.host_cache import HostCache, LastUse, StoredBlock

WAITS = ReturnWaits(least_wait_s=1.0)


def make_host(
    blocks: int = 5, evictor: Evictor | None = None, useless: Container[int] = (), clock: Clock | None = None
) -> HostCache:
    evictor = LruEvictor() if evictor is None else evictor
    return HostCache(
        blocks,
        16,
        evictor,
        clock or Clock(),
        is_useful=lambda finish_class: finish_class not in useless,
        on_lost=lambda _: None,
    )


def by_value(blocks: int) -> Evictor:
    options = {"alpha_s": 10.0, "beta_s": 1e4, "tau0_s": 60.0, "slope_s": 0.0, "base_s": 1.0, "floor_s": 1e-6}
    return AsymCacheEvictor(num_blocks=blocks, **options)


def key_of(number: int) -> bytes:
    return make_block_hash_with_group_id(BlockHash(number.to_bytes(4, "big")), 0)


def store(host: HostCache, *numbers: int, freed_s: float = 0.0, is_hit: bool = False) -> None:
    last_use = LastUse(FreeContext(), freed_s)
    blocks = host.reserve(len(numbers))
    filled = zip(blocks, numbers, strict=True)
    host.put([StoredBlock(block, key_of(number), 16, last_use) for block, number in filled])
    if is_hit:
        host.note_hits(map(key_of, numbers))
    host.check_integrity()


def held(host: HostCache, numbers: range) -> list[int]:
    return [number for number in numbers if host.map.holds(key_of(number))]


def test_least_valuable_blocks_go_when_others_are_stored() -> None:
    host = make_host()
    store(host, 1, freed_s=1.0)
    store(host, 2, freed_s=2.0)
    store(host, 3, freed_s=3.0)
    store(host, 4, 5, freed_s=4.0)
    assert held(host, range(9)) == [2, 3, 4, 5]
    assert host.evictions.blocks == 1
    assert host.used_blocks == 4


def test_what_the_gpu_has_too_goes_before_older_blocks() -> None:
    host = make_host(5, by_value(5))
    store(host, 1, 2, freed_s=990.0)
    store(host, 3, 4, freed_s=995.0, is_hit=True)
    store(host, 5, freed_s=999.0)
    assert {1, 2, 5} < set(held(host, range(9)))


def test_block_stored_twice_is_kept_once() -> None:
    host = make_host()
    store(host, 1)
    store(host, 1)
    assert host.used_blocks == 1


def test_blocks_being_read_stay() -> None:
    host = make_host()
    store(host, 1, 2)
    blocks = host.begin_reading([key_of(1)])
    assert host.find_used() == {blocks[0].block_id}
    store(host, 3, 4, 5)
    assert held(host, range(9)) == [1, 3, 4, 5]
    host.end_reading(blocks)
    assert host.find_used() == set()


def test_what_was_read_in_vain_goes_as_before_it_was_read() -> None:
    host = make_host(5, by_value(5))
    store(host, 1, 2, freed_s=990.0)
    # That the GPU has lost it since was not told.
    store(host, 3, 4, freed_s=995.0, is_hit=True)
    host.end_reading_in_vain(host.begin_reading([key_of(2), key_of(3)]))
    assert host.find_used() == set()
    store(host, 5, freed_s=999.0)
    assert held(host, range(9)) == [1, 2, 3, 5]
    host.note_hits([key_of(3)])
    store(host, 6, freed_s=999.0)
    assert held(host, range(9)) == [1, 2, 5, 6]


def test_no_more_is_reserved_than_there_is() -> None:
    host = make_host(blocks=3)
    assert len(host.reserve(9)) == 2
    assert host.reserve(1) == []


def test_copy_of_what_the_gpu_has_goes_first_until_it_is_renewed() -> None:
    host = make_host(blocks=4)
    # With an order by value the copy's factor makes it the first; here its time of freeing does.
    store(host, 1, 2, 3, freed_s=5.0)
    host.end_reading(host.begin_reading([key_of(2)]))
    host.renew([(key_of(2), LastUse(FreeContext(), 9.0))])
    store(host, 4)
    assert 2 in held(host, range(9))
    # Not a copy: what its last use was stays.
    host.renew([(key_of(3), LastUse(FreeContext(), 99.0))])


def test_reset_forgets_all_but_what_is_written() -> None:
    host = make_host()
    store(host, 1, 2)
    blocks = host.reserve(1)
    host.reset()
    assert host.used_blocks == 0
    assert host.find_used() == {blocks[0].block_id}
    host.give_back(blocks)
    store(host, 1)
    assert held(host, range(9)) == [1]


def test_what_no_job_comes_back_to_goes_first() -> None:
    host = make_host(5, by_value(5), useless={7})
    blocks = host.reserve(2)
    useless = LastUse(FreeContext(finish_class=7), 999.0)
    host.put([StoredBlock(block, key_of(n), 16, useless) for n, block in enumerate(blocks, start=1)])
    store(host, 3, freed_s=1.0)
    store(host, 4, freed_s=1.0, is_hit=True)
    store(host, 5, 6, freed_s=2.0)
    assert held(host, range(9)) == [3, 4, 5, 6]


def test_what_the_gpu_hits_again_goes_until_it_is_lost_there() -> None:
    host = make_host(6, by_value(6))
    store(host, 1, 2, freed_s=995.0)
    store(host, 3, 4, 5, freed_s=990.0)
    host.note_hits([key_of(1), key_of(2), key_of(7)])
    host.renew([(key_of(2), LastUse(FreeContext(), 999.0))])
    store(host, 6, freed_s=999.0)
    assert held(host, range(9)) == [2, 3, 4, 5, 6]
    host.check_integrity()


def test_what_is_read_is_no_copy_yet() -> None:
    host = make_host()
    store(host, 1)
    reading = host.begin_reading([key_of(1)])
    host.note_hits([key_of(1)])
    assert host.find_used() == {reading[0].block_id}
    host.end_reading(reading)
    host.check_integrity()


def test_copy_is_not_worth_what_its_job_has_here_alone() -> None:
    """Freed by nobody, the evictor would give it back to the group of the job that waits for it."""
    host = make_host(4, ReturnTimeEvictor(num_blocks=4, slope_s=0.0, base_s=1.0, floor_s=1e-6, waits=WAITS))
    last_use = LastUse(FreeContext(job=7), 990.0)
    for number in (1, 2):
        (block,) = host.reserve(1)
        host.put([StoredBlock(block, key_of(number), 16, last_use)])
    store(host, 3, freed_s=900.0)
    host.note_hits([key_of(1)])
    store(host, 4, freed_s=999.0)
    assert held(host, range(9)) == [2, 3, 4]
    host.check_integrity()


def test_copy_of_what_the_gpu_loses_is_worth_its_last_use() -> None:
    host = make_host(4, by_value(4))
    store(host, 1, 2, freed_s=990.0, is_hit=True)
    store(host, 3, freed_s=990.0)
    host.renew([(key_of(1), LastUse(FreeContext(), 995.0))])
    store(host, 4, freed_s=999.0)
    assert held(host, range(9)) == [1, 3, 4]
    host.check_integrity()


@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(0, 900), st.lists(st.integers(1, 99), max_size=4)), max_size=8),
    st.floats(900, 5000),
)
def test_order_is_that_of_the_evictor_by_last_uses(uses: list[tuple[int, float, list[int]]], now_s: float) -> None:
    """Return times cost, by the age on the GPU: what a job is likely to do changes as it stays away."""
    options = {"slope_s": 1e-3, "base_s": 1.0, "floor_s": 1e-6, "waits": WAITS}
    clock = Clock()
    host = make_host(40, ReturnTimeEvictor(num_blocks=40, **options), clock=clock)
    alone = ReturnTimeEvictor(num_blocks=40, **options)
    for number, (finish_class, freed_s, positions) in enumerate(sorted(uses, key=itemgetter(1))):
        context = FreeContext(finish_class=finish_class, job=number + 1)
        blocks = host.reserve(len(positions))
        keys = [key_of(100 * number + index) for index in range(len(positions))]
        filled = zip(blocks, keys, positions, strict=True)
        host.put([StoredBlock(block, key, 16 * n, LastUse(context, freed_s)) for block, key, n in filled])
        if positions:
            alone.add([block.block_id for block in blocks], [16 * n for n in positions], freed_s, context)
    clock.now_s = now_s
    # What holds nothing goes first.
    used = host.used_blocks
    order = [block.block_id for block in host.reserve(39)][39 - used :]
    assert order == list(alone.order(now_s))
