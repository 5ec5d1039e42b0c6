"""Where a request stands in the queue, by its job."""

from __future__ import annotations

import pytest
from hand_clock import Clock
from hypothesis import given
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.v1.request import Request

from agentcache.engine.order.job_queue import ORDINARY, PINNED, JobQueue, find_priority
from agentcache.engine.request_state import QueuePriority
from agentcache.policy.runtime_policy import Order


def test_without_an_order_a_request_stands_where_it_comes() -> None:
    assert find_priority(None, 3.0, 10.0, pinned=True) == QueuePriority(ORDINARY, 10.0, 10.0)


@pytest.mark.parametrize(
    ("order", "pinned", "rank", "time_s"),
    [
        (Order(), False, ORDINARY, 3.0),
        (Order(), True, PINNED, 3.0),
        (Order(seniority_s=4.0), False, ORDINARY, 6.0),
        (Order(seniority_s=30.0), False, ORDINARY, 3.0),
        (Order(seniority_s=4.0), True, PINNED, 6.0),
        (Order(seniority_s=0.0), False, ORDINARY, 10.0),
    ],
)
def test_place_at_10_s_of_a_job_that_came_at_3_s(order: Order, pinned: bool, rank: int, time_s: float) -> None:
    assert find_priority(order, 3.0, 10.0, pinned=pinned) == QueuePriority(rank, time_s, 10.0)


@given(
    seniority_s=st.integers(0, 40),
    idle_s=st.integers(0, 100),
    later_s=st.integers(1, 100),
    age_s=st.integers(0, 300),
)
def test_an_older_job_passes_nobody_once_its_seniority_is_over(
    seniority_s: int, idle_s: int, later_s: int, age_s: int
) -> None:
    order = Order(seniority_s=seniority_s)
    first = find_priority(order, 1000.0 - idle_s, 1000.0, pinned=False)
    now_s = 1000.0 + seniority_s + later_s
    assert first < find_priority(order, now_s - age_s, now_s, pinned=False)


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 40), st.booleans(), st.integers(0, 2)), min_size=1, max_size=40
    ),
    st.integers(0, 20),
    st.integers(0, 60),
)
def test_nobody_is_passed_by_one_that_comes_a_patience_later(
    arrivals: list[tuple[int, int, bool, int]], patience_s: int, seniority_s: int
) -> None:
    """Pinned or not. Each request comes some seconds after the one before, then some are served."""
    clock, order = Clock(), Order(seniority_s=seniority_s, patience_s=patience_s)
    places: dict[str, QueuePriority] = {}
    queue = JobQueue(lambda request: places[request.request_id], patience_s, clock)
    for number, (gap_s, age_s, pinned, served) in enumerate([*arrivals, (100, 0, False, len(arrivals))]):
        clock.now_s += gap_s
        places[f"{number}"] = find_priority(order, clock.now_s - age_s, clock.now_s, pinned=pinned)
        queue.add_request(Request(f"{number}", [1], SamplingParams(max_tokens=1), None, arrival_time=0.0))
        for _ in range(served):
            if not queue:
                break
            came_s = places[queue.pop_request().request_id].arrival_s
            assert all(places[left.request_id].arrival_s >= came_s - patience_s for left in queue)
