"""What policies become where a context is lost as a whole with its last window or state."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcache.policy.registry import POLICIES
from agentcache.policy.runtime_policy import Order, RuntimePolicy

OURS = ("agentcache", "agentcache-interactive", "agentcache-throughput")
OTHERS = sorted(name for name, policy in POLICIES.items() if policy.runtime is not None and name not in OURS)

each_of_ours = pytest.mark.parametrize("name", OURS)
each_kind = pytest.mark.parametrize(("has_states", "share"), [(False, 1.0), (True, 0.8)], ids=["windows", "states"])
KEPT_SHARE = 0.4


def find_runtime(name: str) -> RuntimePolicy:
    runtime_policy = POLICIES[name].runtime
    assert runtime_policy is not None
    return runtime_policy


def find_order(runtime_policy: RuntimePolicy) -> Order:
    assert runtime_policy.order is not None
    return runtime_policy.order


@each_of_ours
@each_kind
def test_waits_are_bounded_by_a_share_of_computing_the_cache(name: str, has_states: bool, share: float) -> None:
    ours = find_runtime(name)
    order = replace(find_order(ours), running=1.0, patience_s=share * 5.0)
    kept_order = replace(order, patience_s=KEPT_SHARE * 5.0) if has_states else None
    kept_whole = ours.keep_contexts_whole(5.0, has_states=has_states)
    assert kept_whole == replace(ours, order=order, kept_order=kept_order), "and nothing else is"


@each_of_ours
def test_waits_beside_a_tier_stay_as_short(name: str) -> None:
    ours = POLICIES[name].find_runtime(steers_tier=True)
    assert ours is not None
    assert ours.kept_order is not None
    assert ours.keep_contexts_whole(1000.0, has_states=True).kept_order == ours.kept_order


@each_of_ours
@each_kind
def test_a_cache_that_takes_long_raises_no_patience(name: str, has_states: bool, share: float) -> None:
    ours = find_runtime(name)
    patience_s = find_order(ours).patience_s
    for cache_s in (patience_s / share, 1000.0):
        kept_whole = ours.keep_contexts_whole(cache_s, has_states=has_states)
        order = find_order(kept_whole)
        assert (order.patience_s, order.running) == (pytest.approx(patience_s), 1.0)
        assert order.patience_s <= patience_s
        assert kept_whole.kept_order is None or kept_whole.kept_order.patience_s <= order.patience_s


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("has_states", [False, True])
def test_policies_of_papers_stay_as_they_are(name: str, has_states: bool) -> None:
    theirs = find_runtime(name)
    assert theirs.keep_contexts_whole(1.0, has_states=has_states) is theirs


def test_first_come_first_served_stays_so() -> None:
    """Our pins without an order of jobs."""
    unordered = RuntimePolicy(ttl="hazard")
    assert unordered.keep_contexts_whole(1.0, has_states=True) is unordered


ORDERS = st.builds(Order, **{name: st.floats(0, 1e6) | st.just(math.inf) for name in ("seniority_s", "patience_s")})


@given(ORDERS, ORDERS, st.floats(0, 1))
@example(Order(patience_s=2.0), Order(patience_s=15.0), 0.7)
def test_an_order_between_two_has_what_lies_between(one: Order, other: Order, share: float) -> None:
    for a, b, between in zip(astuple(one), astuple(other), astuple(one.towards(other, share)), strict=True):
        if math.isfinite(a + b) or a == b:
            assert between == pytest.approx(min(max(between, min(a, b)), max(a, b)), abs=1e-6)


def test_the_ends_of_the_way_are_the_orders() -> None:
    one, other = Order(patience_s=2.0), Order(patience_s=15.0, juniors=0.8)
    assert (one.towards(other, 0.0), one.towards(other, 1.0)) == (one, other)
    assert one.towards(other, 0.5) == Order(patience_s=8.5, juniors=0.4), "what is infinite in both stays so"
