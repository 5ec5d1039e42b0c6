"""The simulated link, which both directions share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.engine.vllm.copiers import CopyOrders
from agentcache.engine.vllm.workers import SimpleCPUOffloadMetadata
from agentcache.policy.link_profile import Link
from agentcache.sim.delays import HostLink, Links

BLOCK_S, LATENCY_S, BOTH_SHARE = 1.0, 0.25, 0.625
_WAY = Link(LATENCY_S, BLOCK_S)


def ask(link: HostLink, number: int, *, fetch: int = 0, store: int = 0, at_s: float = 0.0) -> None:
    """Ask for copies of so many blocks each way, the fetch as `number` and the store as 100 more."""
    metadata = CopyOrders()
    if fetch:
        metadata.load_event, metadata.load_gpu_blocks = number, list(range(fetch))
    if store:
        metadata.store_event, metadata.store_gpu_blocks = number + 100, list(range(store))
    link.begin(metadata, at_s, at_s + 99)


def find_end(link: HostLink, number: int, until_s: float = 100.0, step_s: float = 1e-2) -> float:
    """Find when a copy has ended, on a grid."""
    for index in range(int(until_s / step_s)):
        done = link.end(index * step_s)
        if done is None:
            continue
        told = done.kv_connector_worker_meta
        if number in told.ended:
            return index * step_s
    raise AssertionError("it never ends")


def make_link(store: Link = _WAY) -> HostLink:
    return HostLink(Links(_WAY, store, BOTH_SHARE), workers=1)


def test_one_way_alone_has_the_whole_link() -> None:
    link = make_link()
    ask(link, 1, fetch=4)
    assert find_end(link, 1) == pytest.approx(LATENCY_S + 4 * BLOCK_S, abs=0.02)


def test_copies_of_one_way_come_one_after_the_other() -> None:
    link = make_link()
    ask(link, 1, store=4)
    ask(link, 2, store=1)
    assert find_end(link, 102) == pytest.approx(LATENCY_S + 5 * BLOCK_S, abs=0.02)


def test_both_ways_at_once_slow_each_other_down_while_both_go_on() -> None:
    link = make_link()
    ask(link, 1, fetch=2, store=4)
    both_s = 2 * BLOCK_S / BOTH_SHARE
    # What is left of the store has the link to itself.
    assert find_end(link, 101) == pytest.approx(LATENCY_S + both_s + 2 * BLOCK_S, abs=0.02)


def test_each_way_has_its_own_speed() -> None:
    link = make_link(store=Link(0.5, 2.0))
    ask(link, 1, fetch=3)
    ask(link, 2, store=3, at_s=20)
    assert find_end(link, 1) == pytest.approx(LATENCY_S + 3 * BLOCK_S, abs=0.02)
    assert find_end(link, 102) == pytest.approx(20 + 0.5 + 3 * 2.0, abs=0.02)


def test_requests_come_back_in_the_order_of_their_fetch() -> None:
    """So a simulation is the same in every process, as the order of a set of names is not."""
    link = make_link()
    names = [f"request-{number}" for number in range(20)]
    link.begin(SimpleCPUOffloadMetadata(load_event=1, load_gpu_blocks=[7], load_event_to_reqs={1: names}), 0.0, 1.0)
    done = link.end(100.0)
    assert done is not None
    assert list(done.finished_recving or ()) == names


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), max_size=6), st.data())
def test_how_often_one_looks_changes_nothing(copies: list[tuple[int, int, int]], data: st.DataObject) -> None:
    def run(looks: list[float]) -> set[int]:
        link, done = make_link(), set[int]()
        for number, (fetch, store, at_s) in enumerate(copies):
            ask(link, number, fetch=fetch, store=store, at_s=at_s)
        for look in [*looks, 20.125]:
            if (told := link.end(look)) is not None:
                done |= set(told.kv_connector_worker_meta.ended)
        return done

    looks = sorted(data.draw(st.lists(st.floats(0, 20), max_size=5)))
    assert run(looks) == run([])
