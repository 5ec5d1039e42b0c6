"""What policies become where a context is lost as a whole with its last window or state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentcache.policy.registry import POLICIES
from agentcache.policy.runtime_policy import Order, RuntimePolicy

OURS = ("agentcache", "agentcache-interactive", "agentcache-throughput")
OTHERS = sorted(name for name, policy in POLICIES.items() if policy.runtime is not None and name not in OURS)

each_of_ours = pytest.mark.parametrize("name", OURS)
each_kind = pytest.mark.parametrize(("has_states", "share"), [(False, 1.0), (True, 0.8)], ids=["windows", "states"])


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
    kept_whole = ours.keep_contexts_whole(5.0, has_states=has_states)
    assert kept_whole == replace(ours, order=order), "and nothing else is"


@each_of_ours
def test_beside_a_tier_each_wait_is_begun_and_none_is_long(name: str) -> None:
    ours = find_runtime(name)
    beside = ours.beside_tier()
    assert beside == replace(ours, order=replace(find_order(ours), patience_s=5.0, least_wait_s=0.0))
    assert find_order(beside.keep_contexts_whole(1000.0, has_states=True)).patience_s == 5.0


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


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("has_states", [False, True])
def test_policies_of_papers_stay_as_they_are(name: str, has_states: bool) -> None:
    theirs = find_runtime(name)
    assert theirs.keep_contexts_whole(1.0, has_states=has_states) is theirs
    assert theirs.beside_tier() is theirs


def test_first_come_first_served_stays_so() -> None:
    """Our pins without an order of jobs."""
    unordered = RuntimePolicy(ttl="hazard")
    assert unordered.keep_contexts_whole(1.0, has_states=True) is unordered
    assert unordered.beside_tier() is unordered
