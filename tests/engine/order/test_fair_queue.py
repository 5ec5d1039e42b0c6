"""Among tenants the one that has taken least for its weight goes next; an oracle that does nothing cleverly agrees."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hand_clock import Clock
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_objects import list_kept
from vllm import SamplingParams
from vllm.v1.request import Request

from agentcache.engine.order.fair_queue import FairQueue
from agentcache.engine.order.job_queue import ORDINARY
from agentcache.engine.order.tenants import MAX_IDLE, TenantShares, TenantState
from agentcache.engine.request_state import QueuePriority
from agentcache.policy.price import RecomputeCost, RequestCost, TurnCost
from agentcache.tenants import Tenants

# A block of one token costs a second, a token of a reply nothing.
COST = RequestCost(TurnCost(RecomputeCost(0.0, 1.0, 1.0), 1, 1000), 0.0)
WEIGHTS = {"a": 1, "b": 2, "c": 4}


class Line:
    """Requests that queue by tenant, and run one at a time."""

    def __init__(self) -> None:
        known = {name: {"weight": weight} for name, weight in WEIGHTS.items()}
        self.tenants = TenantShares(
            tenants=Tenants(known=known),
            cost=COST,
            pins=None,
            states={},
            find_job=lambda _: None,
            list_running=list,
            clock=Clock(),
        )
        self.queue = FairQueue(self._place, 1e9, Clock(), self.tenants.find)
        self.running: Request | None = None
        self._count = 0

    def come(self, tenant: str | None, tokens: int) -> str:
        self._count += 1
        name = f"{tenant}{self._count}"
        params = SamplingParams(max_tokens=1)
        request = Request(name, [1] * tokens, params, None, arrival_time=self._count, cache_salt=tenant)
        self.tenants.arrived(request)
        self.queue.add_request(request)
        return name

    def serve(self) -> str:
        """The one that runs ends, and the next runs."""
        self.end()
        self.running = self.queue.pop_request()
        self.tenants.admitted(self.running, 0, ())
        return self.running.request_id

    def end(self) -> None:
        if self.running is not None:
            self.tenants.ended(self.running)
        self.running = None

    def _place(self, request: Request) -> QueuePriority:
        return QueuePriority(ORDINARY, request.arrival_time, request.arrival_time)


class Oracle:
    """Start-time fair queueing as it is written: all tenants are looked at each time, in exact numbers."""

    def __init__(self) -> None:
        self.finish = dict.fromkeys(WEIGHTS, Fraction(0))
        self.now = Fraction(0)
        self.waiting: list[tuple[str, str, int]] = []
        self.running: str | None = None

    def come(self, tenant: str, name: str, tokens: int) -> None:
        if tenant != self.running and all(each != tenant for each, _, _ in self.waiting):
            self.finish[tenant] = max(self.finish[tenant], self.now)
        self.waiting.append((tenant, name, tokens))

    def list_first(self) -> list[str]:
        """Those that may go next: of the tenants with the least virtual time each the one that came first."""
        least = min(self.finish[tenant] for tenant, _, _ in self.waiting)
        first: dict[str, str] = {}
        for tenant, name, _ in self.waiting:
            if self.finish[tenant] == least:
                first.setdefault(tenant, name)
        return list(first.values())

    def serve(self, name: str) -> None:
        tenant, _, tokens = entry = next(each for each in self.waiting if each[1] == name)
        self.waiting.remove(entry)
        self.now = max(self.now, self.finish[tenant])
        self.finish[tenant] += Fraction(tokens, WEIGHTS[tenant])
        self.running = tenant


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("abc"), st.sampled_from([4, 8, 64])))))
def test_the_order_is_that_of_fair_queueing(steps: Sequence[tuple[str, int] | None]) -> None:
    line, oracle = Line(), Oracle()
    for step in [*steps, *[None] * len(steps)]:
        if step is not None:
            oracle.come(step[0], line.come(*step), step[1])
        elif oracle.waiting:
            allowed = oracle.list_first()
            served = line.serve()
            assert served in allowed
            oracle.serve(served)
        else:
            line.end()
            oracle.running = None
    assert len(line.queue) == len(oracle.waiting) == 0


def test_weights_divide_the_engine() -> None:
    line = Line()
    for _ in range(70):
        for tenant in "abc":
            line.come(tenant, 8)
    served = [line.serve()[0] for _ in range(70)]
    assert [served.count(tenant) for tenant in "abc"] == [10, 20, 40]


def test_who_was_idle_has_saved_nothing() -> None:
    line = Line()
    for _ in range(40):
        line.come("a", 8)
    for _ in range(20):
        line.serve()
    for _ in range(20):
        line.come("d", 8)
    served = [line.serve()[0] for _ in range(20)]
    assert abs(served.count("a") - served.count("d")) <= 1


def test_one_tenant_keeps_the_order_of_its_jobs() -> None:
    line = Line()
    names = [line.come("a", tokens) for tokens in (64, 4, 8)]
    assert [request.request_id for request in line.queue] == names
    assert [line.serve() for _ in names] == names


def test_skipped_requests_stay_where_they_were() -> None:
    line = Line()
    names = [line.come(tenant, 8) for tenant in "abab"]
    skipped = [line.queue.pop_request() for _ in names]
    assert not line.queue
    line.queue.prepend_requests(reversed(skipped))
    line.queue.remove_requests([skipped[0], skipped[0]])
    assert len(line.queue) == 3
    assert [line.serve() for _ in range(3)] == [name for name in names if name != skipped[0].request_id]


def test_nobody_waits_in_an_empty_queue() -> None:
    line = Line()
    line.come("a", 8)
    line.serve()
    with pytest.raises(IndexError, match="no request waits"):
        line.queue.peek_request()


def test_ten_thousand_tenants_are_not_remembered() -> None:
    line = Line()
    for number in range(10_000):
        line.come(f"tenant-{number}", 4)
        line.serve()
    line.end()
    assert len(line.tenants) <= MAX_IDLE + 1
    assert len(list_kept(line, TenantState)) <= MAX_IDLE + 1
