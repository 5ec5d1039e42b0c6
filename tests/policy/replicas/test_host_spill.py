"""A CPU cache behind each engine's: what is there costs a load, which jobs stay at home for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.price import RecomputeCost
from agentcache.policy.replicas.chain import Chain
from agentcache.policy.replicas.engine_load import HostMemory, PrefillCost
from agentcache.policy.replicas.placement import Placed, Placement, SpillRule

BLOCK = 4
GPU = 160
_OTHERS = 100
COST = PrefillCost(RecomputeCost(slope_s=0.01, base_s=1.0, floor_s=1e-9), BLOCK)
STEPS = st.lists(st.tuples(st.sampled_from(["turn", "turn", "ask", "crowd", "clear"]), st.integers(0, 7)), max_size=50)


class WithoutHost(Placement):
    """Placement by the cost that it had before there was a host's memory."""

    def _cost_at(self, engine: int, chain: Chain, prefill_s: float, *, comes: bool) -> float:
        load = self.loads[engine]
        crowding = load.crowding + (chain.tokens / load.capacity_tokens if comes else 0.0)
        return load.queued_s + prefill_s + crowding * self._cost.of(chain.tokens)

    def _prefill_s(self, engine: int, chain: Chain) -> float:
        hit_tokens = self._known[engine].count_hits(chain.hashes) * self.block_tokens
        return self._cost.of(chain.tokens, hit_tokens)


class Front:
    """Jobs whose prompts grow by three blocks a turn."""

    def __init__(self, kind: type[Placement] = Placement, **given: Any) -> None:
        options: dict[str, Any] = {"capacity_tokens": GPU, "prefill_cost": COST, **given}
        self.placement = kind(2, **options)
        self.contexts: dict[int, list[int]] = {}
        self.requests = 0

    def ask(self, job: int) -> Placed:
        self.requests += 1
        context = self.contexts.setdefault(job, [])
        context += [1000 * job + self.requests] * 3 * BLOCK
        return self.placement.place(str(self.requests), Chain(context, BLOCK), 0.0, job=f"job {job}")

    def turn(self, job: int) -> Placed:
        placed = self.ask(job)
        self.placement.got_token(str(self.requests))
        self.placement.finished(str(self.requests), [], 0.0)
        return placed

    def fill(self, engine: int) -> None:
        """Have an engine full of others' jobs, so that none goes there."""
        for job in range(_OTHERS):
            self.placement.loads[engine].settle(f"other {job}", GPU if not job else 0)

    def empty(self, engine: int) -> None:
        for job in range(_OTHERS):
            self.placement.loads[engine].leave(f"other {job}")

    def do(self, step: str, which: int) -> Placed | None:
        crowd = f"crowd of {which % 2}"
        if step in ("crowd", "clear"):
            self.placement.loads[which % 2].computed(crowd)
        if step == "crowd":
            self.placement.loads[which % 2].queue(crowd, 10.0 * which)
        return {"turn": self.turn, "ask": self.ask}[step](which) if step in ("turn", "ask") else None


@given(STEPS, st.floats(0, 10), st.sampled_from([1.0, 1.5, 3.0]))
def test_without_tokens_in_dram_nothing_changes(steps: list[tuple[str, int]], load_s: float, factor: float) -> None:
    spill = SpillRule(factor=factor)
    before = Front(WithoutHost, spill=spill)
    after = Front(spill=spill, host=HostMemory(0, load_s))
    for step in steps:
        assert after.do(*step) == before.do(*step)


@given(st.integers(1, 12), st.integers(1, 8), st.floats(0.0, 1.0))
def test_a_job_in_dram_stays_where_loading_costs_less(turns: int, others: int, share: float) -> None:
    """With nothing waiting at home, and all jobs there in its two caches: whatever crowds its GPU.

    `share` of computing its context is what loading it takes as often as the crowd makes it be loaded.
    """
    # Its own context and theirs are at one engine: the other was full when they came.
    tokens = 3 * BLOCK * (turns + 1 + others * 5)
    crowding = tokens / GPU
    load_s = share * COST.recompute_cost.at(0) / BLOCK / (1.0 + crowding)
    front = Front(host=HostMemory(tokens, load_s))
    front.fill(1)
    for _ in range(turns):
        front.turn(100)
    for other in range(others):
        for _ in range(5):
            front.turn(other)
    front.empty(1)
    assert front.turn(100).reason == "home"


@pytest.mark.parametrize(("host", "reason"), [(HostMemory(), "cheaper"), (HostMemory(10 * GPU, 0.01), "home")])
def test_a_crowded_home_with_dram_keeps_its_jobs(host: HostMemory, reason: str) -> None:
    front = Front(host=host)
    front.fill(1)
    for job in range(10):
        for _ in range(5):
            assert front.turn(job).engine == 0
    front.empty(1)
    assert front.turn(0).reason == reason


def test_what_is_loaded_is_not_queued_as_if_it_were_computed() -> None:
    front = Front(host=HostMemory(10 * GPU, 0.01))
    front.fill(1)
    for job in range(10):
        front.turn(job)
        front.turn(job)
    front.ask(0)
    # Two of its turns are in the CPU cache, the third is new.
    new_s = COST.of(9 * BLOCK, 6 * BLOCK)
    assert front.placement.loads[0].queued_s == pytest.approx(new_s + 6 * BLOCK * 0.01)
