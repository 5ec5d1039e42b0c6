"""Jobs of many turns on a cache that is far too small for them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from live_engine import BLOCK, LiveEngine, Reply, assert_same, make_prompt
from vllm.v1.core.kv_cache_utils import get_group_id

from tool_runtime.agent.job import ToolCall

SYSTEM_TOKENS = 3 * BLOCK + 9
TOOLS = ("search", "fetch", "run")
# The longest request takes 25.
BLOCKS = 37


@dataclass
class Crowd:
    """Jobs that share a system prompt; a turn goes on from the turn before, its reply and what a tool said.

    What the jobs are told is so many times as long as with a `scale` of 1.
    """

    engine: LiveEngine
    chance: random.Random
    turns: list[tuple[list[int], int, Reply]] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    resets: int = 0
    resets_running: bool = True
    sampling: Mapping[str, Any] = field(default_factory=dict)
    scale: int = 1

    def run(self, jobs: int, turns: int) -> None:
        system = make_prompt(seed=0, tokens=self.scale * SYSTEM_TOKENS)
        prompts = {job: system + self._tokens(250) for job in range(jobs)}
        left = dict.fromkeys(prompts, turns)
        running: dict[int, tuple[str, int]] = {}
        while any(left.values()) or running:
            ready = [job for job in prompts if left[job] and job not in running]
            if ready and (not running or self.chance.random() < 0.15):
                job = self.chance.choice(ready)
                length = self.chance.randint(2, 40)
                left[job] -= 1
                running[job] = self._ask(job, prompts[job], length, is_last=not left[job]), length
            # At least once.
            is_due = len(self.turns) > 12 and not self.resets
            if self.chance.random() < (0.5 if is_due else 0.01):
                self.resets += self.engine.reset(running=self.chance.random() < 0.7 and self.resets_running)
            if self.chance.random() < 0.2:
                self.lose_block()
            for output in self.engine.step():
                if output.finished:
                    job = next(job for job, (name, _) in running.items() if name == output.request_id)
                    self._take(prompts, job, *running.pop(job))

    def lose_block(self) -> None:
        self.engine.pool.evict_blocks({self.chance.randrange(1, self.engine.pool.num_gpu_blocks)})

    def _ask(self, job: int, prompt: list[int], length: int, *, is_last: bool) -> str:
        priority = self.chance.randint(0, 2)
        calls = [] if is_last else [ToolCall(TOOLS[job % len(TOOLS)], "{}")]
        return self.engine.add(prompt, length, priority=priority, session=f"job-{job}", calls=calls, **self.sampling)

    def _take(self, prompts: dict[int, list[int]], job: int, name: str, length: int) -> None:
        reply = self.engine.reply(name)
        self.turns.append((prompts[job], length, reply))
        prompts[job] = prompts[job] + reply.tokens + self._tokens(80)

    def _tokens(self, most: int) -> list[int]:
        return make_prompt(self.chance.randrange(10**6), self.scale * self.chance.randint(most // 2, most))


class WindowedCrowd(Crowd):
    """What is lost at random is full attention's: without a window there is nothing to fill a gap for."""

    def lose_block(self) -> None:
        full = self.engine.scheduler.gap_filler.finder.rule.full
        ids = [b.block_id for b in self.engine.pool.blocks if b.block_hash and get_group_id(b.block_hash) in full]
        self.engine.pool.evict_blocks({self.chance.choice(ids)} if ids else set())


def assert_equal_to_cold(crowd: Crowd, cold: LiveEngine) -> None:
    """Every reply is that of an engine which computes every prompt."""
    # Dictated as the crowd's are: those end at an end of turn, `ignore_eos` or not.
    names = [cold.add(prompt, length, calls=[]) for prompt, length, _ in crowd.turns]
    cold.finish()
    for name, (*_, reply) in zip(names, crowd.turns, strict=True):
        assert_same(reply, cold.reply(name))


def assert_eventful(crowd: Crowd) -> None:
    """Gaps were filled, requests preempted, the cache reset, and blocks hit: replies must be the same either way."""
    stats = crowd.engine.scheduler.gap_filler.stats
    assert len(crowd.turns) == 24
    assert stats.fill_tokens >= 5 * BLOCK
    assert sum(stats.requests.values()) > 2
    assert crowd.preempted
    assert crowd.resets
    assert sum(reply.cached for *_, reply in crowd.turns) > 0


def note_preemptions(engine: LiveEngine, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    preempt = engine.scheduler._preempt_request

    def note(request: Any, *args: Any, **kwargs: Any) -> None:
        names.append(request.request_id)
        preempt(request, *args, **kwargs)

    monkeypatch.setattr(engine.scheduler, "_preempt_request", note)
