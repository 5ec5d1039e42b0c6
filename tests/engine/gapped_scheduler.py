"""Schedulers whose cached prompts have gaps, without a worker."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config, make_scheduler

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.scheduler import AgentScheduler

PROMPT = list(range(1, 301))


def make_lone(
    model_path: str,
    blocks: int = 64,
    in_flight: int = 1,
    engine: Mapping[str, Any] | None = None,
    policy: str = "asymcache",
    *,
    row_s: float = 0.0,
    **segments: Any,
) -> LoneScheduler:
    """Whose islands are all worth a row, unless one takes longer than nothing."""
    knobs = {"policy": policy, "lifespan_s": 200, "segments": segments, "tuning": {"row_s": row_s}}
    config = make_config(model_path, SCHEDULER_CLASS, engine, **knobs)
    scheduler = make_scheduler(config, blocks)
    assert isinstance(scheduler, AgentScheduler)
    scheduler.clock = itertools.count(1.0).__next__
    return LoneScheduler(scheduler, in_flight, shadow=True)


def drop_blocks(lone: LoneScheduler, *indices: int) -> None:
    """Forget what the free blocks hold that stand at these places of their sequences."""
    for block in lone.pool.blocks:
        if block.ref_cnt == 0 and block.block_hash and block.block_hash_num_tokens // BLOCK_SIZE - 1 in indices:
            lone.pool.evict_blocks({block.block_id})


def run_until_idle(lone: LoneScheduler) -> list[Any]:
    steps = []
    while not lone.idle:
        steps.append(lone.step())
        lone.scheduler.check_integrity()
    return steps


def cache_prompt(lone: LoneScheduler, *gaps: int, prompt: list[int] = PROMPT) -> None:
    lone.add("before", prompt, output_tokens=1)
    run_until_idle(lone)
    drop_blocks(lone, *gaps)


def rows_of(step: Any) -> dict[str, tuple[int, int]]:
    """Tokens computed, and tokens before them, of each row; fill rows by their gap's number."""
    names = {name: name.replace("#fill-", " fill ") for name in step.scheduled}
    return {names[name]: row[:2] for name, row in step.scheduled.items()}


class Soak:
    """Random requests over a few growing chats, under a cache too small for them, with everything that can go wrong."""

    def __init__(self, lone: LoneScheduler, seed: int) -> None:
        self.lone = lone
        self.rng = random.Random(seed)
        self.chats = [self._tokens(80) for _ in range(6)]
        self.numbers = itertools.count()
        self.preempted = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._disturb()
            step = self.lone.step()
            self.preempted += len(step.preempted)
            self.lone.scheduler.check_integrity()
            for name, tokens in step.finished.items():
                chat = int(name.split()[1])
                self.chats[chat] = tokens + self._tokens(30) if len(tokens) < 420 else self._tokens(80)

    def _disturb(self) -> None:
        live = [name for name in self.lone.scheduler.requests if "#" not in name]
        if len(live) < 7 and self.rng.random() < 0.25:
            chat = self.rng.randrange(len(self.chats))
            name = f"chat {chat} {next(self.numbers)}"
            options = {"cache_salt": self.rng.choice([None, None, None, "tenant"]), "priority": self.rng.randrange(3)}
            self.lone.add(name, list(self.chats[chat]), output_tokens=self.rng.randint(1, 40), **options)
        if self.rng.random() < 0.5:
            self.lose_blocks(self.rng.randrange(28))
        if live and self.rng.random() < 0.02:
            self.lone.abort(self.rng.choice(live))
        if self.rng.random() < 0.004:
            self.lone.scheduler.reset_prefix_cache(reset_running_requests=self.rng.random() < 0.5)

    def lose_blocks(self, index: int) -> None:
        drop_blocks(self.lone, index)

    def _tokens(self, most: int) -> list[int]:
        return [self.rng.randrange(8000) for _ in range(self.rng.randint(most // 2, most))]


PRIORITIES = {"scheduling_policy": "priority", "max_num_batched_tokens": 300, "long_prefill_token_threshold": 24}


FEW_SLOTS = {"max_num_seqs": 2, "max_num_batched_tokens": 48}
