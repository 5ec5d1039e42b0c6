"""Victims that are found by bounds kept from earlier calls are those that the slow reference takes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from made_evictors import COST, SAME_COST, make_waits
from return_time_reference import ReturnTimeReference
from sizes import pick_size

from agentcache._evictor import FreeContext, ReturnTimeEvictor

# Enough groups for bounds to be kept where a block is taken at a time.
GROUPS = 150
NUM_BLOCKS = 3 * GROUPS
CALLS = pick_size(25, 120)


class Pair:
    """The evictor and its reference, which are told the same."""

    def __init__(self, seed: int, cost: dict[str, Any], longest_wait_s: float) -> None:
        self.chance = random.Random(seed)
        self.evictor = ReturnTimeEvictor(num_blocks=NUM_BLOCKS, **cost, waits=make_waits())
        self.reference = ReturnTimeReference(**cost)
        self.taken = list(range(NUM_BLOCKS))
        self.now_s = 1e6
        for _ in range(GROUPS):
            self.now_s += self.chance.uniform(0.0, longest_wait_s)
            self.add(3)

    def add(self, count: int) -> None:
        freed, self.taken = self.taken[:count], self.taken[count:]
        positions = [16 * self.chance.randrange(0, 2000) for _ in freed]
        context = FreeContext(
            factor=self.chance.choice([1.0, 1.0, 0.5, 30.0]),
            finish_class=self.chance.randrange(3),
            job=self.chance.randrange(6),
            whole=self.chance.random() < 0.2,
        )
        self.evictor.add(freed, positions, self.now_s, context)
        self.reference.add(freed, positions, self.now_s, context)

    def evict(self, count: int) -> None:
        victims = self.evictor.evict(count, self.now_s)
        assert victims == self.reference.evict(count, self.now_s)
        self.taken += victims

    def disturb(self) -> None:
        """Change something between two calls: what is kept must follow."""
        kind = self.chance.randrange(8)
        block_ids = self.chance.sample(range(NUM_BLOCKS), 3)
        if kind == 0:
            self.add(min(3, len(self.taken)))
        elif kind == 1:
            cost_s = self.chance.choice([1e-9, 4e-5, 1.0])
            self.evictor.reprice(block_ids, cost_s)
            self.reference.reprice(block_ids, cost_s)
        elif kind == 2:
            free = [block_id for block_id in block_ids if block_id not in self.taken]
            for block_id in free:
                self.evictor.remove(block_id)
                self.reference.remove(block_id)
            self.taken = free + self.taken

    def live(self, step_s: float) -> None:
        for _ in range(CALLS):
            self.now_s += self.chance.choice(
                [0.0, step_s, step_s, -step_s / 10 if self.chance.random() < 0.05 else 0.0]
            )
            self.evict(self.chance.choice([1, 1, 1, 1, 2, 40 if self.chance.random() < 0.02 else 1]))
            self.disturb()
            self.evictor.check_integrity()


@pytest.mark.parametrize("step_s", [1e-3, 0.02, 0.3])
@pytest.mark.parametrize("longest_wait_s", [1e-3, 1.0, 60.0])
@pytest.mark.parametrize("cost", [COST, SAME_COST], ids=["by position", "the same"])
def test_a_kept_ranking_takes_the_reference_s_victims(
    cost: dict[str, Any], longest_wait_s: float, step_s: float
) -> None:
    Pair(0, cost, longest_wait_s).live(step_s)
