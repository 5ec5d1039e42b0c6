from __future__ import annotations

from functools import cache

import pytest
from belady import BeladyEvictor
from evictor_conformance import NUM_BLOCKS, EvictorConformance
from future_uses import FutureJob, FutureUses
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from sizes import pick_size

from agentcache._evictor import Evictor, LruEvictor
from agentcache.errors import IntegrityError
from agentcache.policy.price import RecomputeCost

LOSS = RecomputeCost(slope_s=1e-8, base_s=1e-4, floor_s=1e-9)
FOREVER = float("inf")
# A prompt is a path from the root of a tree; a block is known by the path to it.
PATHS = ("a", "ab", "abc", "abd", "e", "ef", "efg", "h")

each_mode = pytest.mark.parametrize("segments", [False, True], ids=["prefix", "segments"])


def blocks_of(path: str) -> list[bytes]:
    return [path[:end].encode() for end in range(1, len(path) + 1)]


def plan(*paths: str) -> FutureUses:
    """One job for each path, which is the prompt of its only turn: job "0", job "1" ..."""
    return FutureUses([FutureJob(str(number), [blocks_of(path)], []) for number, path in enumerate(paths)])


def make_evictor(future: FutureUses, held: dict[int, bytes], *, segments: bool = False, blocks: int = 16) -> Evictor:
    return BeladyEvictor(num_blocks=blocks, recompute_cost=LOSS, future=future, hash_of=held.get, segments=segments)


def order_of(due_s: dict[str, float], *, segments: bool) -> list[bytes]:
    """What goes first, of all blocks of these prompts, at time 0: all are free since the same moment, in any order."""
    future = plan(*due_s)
    for number, time_s in enumerate(due_s.values()):
        if time_s < FOREVER:
            future.due(str(number), 0, time_s)
    held = dict(enumerate(sorted({block for path in due_s for block in blocks_of(path)})))
    evictor = make_evictor(future, held, segments=segments)
    evictor.add(list(held), [16 * len(block) for block in held.values()], 0.0)
    return [held[block_id] for block_id in evictor.order(0.0)]


@each_mode
def test_evictor_keeps_the_contract(segments: bool) -> None:
    future = plan("abc", "abd")
    future.due("0", 0, 1e5)
    future.due("1", 0, 9e5)
    held = dict(enumerate([b"a", b"ab", b"abc", b"abd", b"a", b"not foreseen"]))

    def make() -> Evictor:
        return make_evictor(future, held, segments=segments, blocks=NUM_BLOCKS)

    run_state_machine_as_test(lambda: EvictorConformance(make), settings=settings(max_examples=pick_size(15, 40)))  # type: ignore[arg-type]


def test_prefix_hits_evict_furthest_use_first_from_chain_ends() -> None:
    order = order_of({"abc": 10.0, "efg": 20.0, "h": FOREVER}, segments=False)
    assert order == [b"h", b"efg", b"ef", b"e", b"abc", b"ab", b"a"]


def test_prefix_hits_keep_what_several_requests_share_longest() -> None:
    assert order_of({"abc": 30.0, "abd": 5.0, "ef": 10.0}, segments=False) == [b"abc", b"ef", b"e", b"abd", b"ab", b"a"]


def test_hits_behind_gaps_evict_the_least_cost_per_time_to_use() -> None:
    assert order_of({"abc": 10.0, "h": FOREVER}, segments=True) == [b"h", b"a", b"ab", b"abc"]
    # By position the third block of a prompt costs 0.3 % more than the first.
    assert order_of({"abc": 10.0, "e": 9.98}, segments=True) == [b"a", b"ab", b"e", b"abc"]


@each_mode
def test_blocks_that_nobody_uses_again_go_first(segments: bool) -> None:
    future = plan("ab", "e")
    future.due("0", 0, 1e9)
    future.due("1", 0, 5.0)
    held = {0: b"a", 1: b"e", 2: b"?", 3: b"ab"}
    evictor = make_evictor(future, held, segments=segments)
    evictor.add([1, 0], [16, 16], 0.0)
    evictor.add([2, 3, 4], [16, 32, 0], 0.0)
    assert set(evictor.evict(2, 1.0)) == {2, 4}
    future.ended("1")
    assert evictor.evict(1, 6.0) == [1]


@each_mode
def test_blocks_of_a_waiting_request_stay_to_the_last(segments: bool) -> None:
    future = plan("a", "e")
    future.due("0", 0, 1.0)
    future.due("1", 0, 8.0)
    evictor = make_evictor(future, {0: b"a", 1: b"e"}, segments=segments)
    evictor.add([0, 1], [16, 16], 0.0)
    assert list(evictor.order(7.0)) == [1, 0]


def test_records_that_contradict_each_other_are_found() -> None:
    evictor = make_evictor(plan("a"), {0: b"a"})
    evictor.add([0], [16], 0.0)
    evictor.add_empty([0])
    with pytest.raises(IntegrityError, match="free"):
        evictor.check_integrity()


class PrefixCache:
    """vLLM's cache with one request at a time: a hit ends at the first block that is lost; the rest is computed."""

    def __init__(self, evictor: Evictor, held: dict[int, bytes], blocks: int) -> None:
        self._evictor, self._held = evictor, held
        self._ids: dict[bytes, int] = {}
        evictor.add_empty(list(range(blocks)))

    def ask(self, prompt: list[bytes], now_s: float) -> int:
        """How many blocks are computed."""
        hits = next((at for at, block in enumerate(prompt) if block not in self._ids), len(prompt))
        used = [self._ids[block] for block in prompt[:hits]]
        for block_id in used:
            self._evictor.remove(block_id)
        for block_id, block in zip(self._evictor.evict(len(prompt) - hits, now_s), prompt[hits:], strict=True):
            if self._ids.get(lost := self._held.get(block_id, b"")) == block_id:
                del self._ids[lost]
            self._held[block_id] = block
            self._ids[block] = block_id
            used.append(block_id)
        # vLLM frees the last block first.
        self._evictor.add(used[::-1], [16 * len(self._held[block_id]) for block_id in used[::-1]], now_s)
        return len(prompt) - hits


def count_computed(requests: list[str], blocks: int, *, clairvoyant: bool) -> int:
    future = plan(*requests)
    for number in range(len(requests)):
        future.due(str(number), 0, float(number))
    held: dict[int, bytes] = {}
    evictor = make_evictor(future, held, blocks=blocks) if clairvoyant else LruEvictor()
    cached = PrefixCache(evictor, held, blocks)
    computed = 0
    for number, path in enumerate(requests):
        computed += cached.ask(blocks_of(path), float(number))
        future.ended(str(number))
    return computed


def count_least_computed(requests: list[str], blocks: int) -> int:
    """By trying all: whatever is kept between two requests, of what is there."""

    @cache
    def least(at: int, kept: frozenset[bytes]) -> int:
        if at == len(requests):
            return 0
        prompt = blocks_of(requests[at])
        hits = next((i for i, block in enumerate(prompt) if block not in kept), len(prompt))
        others = kept.difference(prompt)
        rests = {others}
        while len(next(iter(rests))) + len(prompt) > blocks:
            rests = {rest - {block} for rest in rests for block in rest}
        return len(prompt) - hits + min(least(at + 1, rest.union(prompt)) for rest in rests)

    return least(0, frozenset())


@settings(max_examples=pick_size(100, 300))
@given(requests=st.lists(st.sampled_from(PATHS), min_size=1, max_size=10), blocks=st.integers(3, 6))
def test_no_policy_computes_fewer_blocks_in_a_given_order(requests: list[str], blocks: int) -> None:
    computed = count_computed(requests, blocks, clairvoyant=True)
    assert computed == count_least_computed(requests, blocks)
    assert computed <= count_computed(requests, blocks, clairvoyant=False)


def test_lru_does_compute_more() -> None:
    requests = ["abc", "ef", "h"] * 4
    assert count_computed(requests, 4, clairvoyant=True) < count_computed(requests, 4, clairvoyant=False)
