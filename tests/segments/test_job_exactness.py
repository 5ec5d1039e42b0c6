"""Jobs of many turns on a cache that is far too small for them: every reply is that of a cold engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from live_engine import BLOCK, LiveEngine, Reply, assert_same, make_prompt

from agentcache.engine.jobs.tracker import JobTracker
from tool_runtime.agent.job import ToolCall

pytestmark = pytest.mark.engine

SYSTEM = make_prompt(seed=0, tokens=3 * BLOCK + 9)
ENGINES: dict[str, dict[str, Any]] = {
    "small steps": {"max_num_batched_tokens": 3 * BLOCK},
    "one seat, one gap": {"max_num_seqs": 1, "segments": {"row_s": 0.0, "max_gaps": 1}},
    "by priority": {"scheduling_policy": "priority", "max_num_batched_tokens": 6 * BLOCK},
    "pensieve": {"policy": "pensieve"},
    # Between two turns of a job lie some hundred looks at the clock.
    "agentcache": {"policy": "agentcache", "look_s": 0.01},
    "agentcache, small steps": {"policy": "agentcache", "look_s": 0.01, "max_num_batched_tokens": 3 * BLOCK},
    "continuum+asymcache": {"policy": "continuum+asymcache", "look_s": 0.05},
}
TOOLS = ("search", "fetch", "run")
# The longest request takes 25.
BLOCKS = 37


@dataclass
class Crowd:
    """Jobs that share a system prompt; a turn goes on from the turn before, its reply and what a tool said."""

    engine: LiveEngine
    chance: random.Random
    turns: list[tuple[list[int], int, Reply]] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    resets: int = 0

    def run(self, jobs: int, turns: int) -> None:
        prompts = {job: SYSTEM + self._tokens(250) for job in range(jobs)}
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
                self.resets += self.engine.reset(running=self.chance.random() < 0.7)
            if self.chance.random() < 0.2:
                self.engine.pool.evict_blocks({self.chance.randrange(1, BLOCKS)})
            for output in self.engine.step():
                if output.finished:
                    job = next(job for job, (name, _) in running.items() if name == output.request_id)
                    self._take(prompts, job, *running.pop(job))

    def _ask(self, job: int, prompt: list[int], length: int, *, is_last: bool) -> str:
        priority = self.chance.randint(0, 2)
        calls = [] if is_last else [ToolCall(TOOLS[job % len(TOOLS)], "{}")]
        return self.engine.add(prompt, length, priority=priority, session=f"job-{job}", calls=calls)

    def _take(self, prompts: dict[int, list[int]], job: int, name: str, length: int) -> None:
        reply = self.engine.reply(name)
        self.turns.append((prompts[job], length, reply))
        prompts[job] = prompts[job] + reply.tokens + self._tokens(80)

    def _tokens(self, most: int) -> list[int]:
        return make_prompt(self.chance.randrange(10**6), self.chance.randint(most // 2, most))


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_replies_of_jobs_equal_cold_ones(
    take_engine: Callable[..., LiveEngine], cold: LiveEngine, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = take_engine(num_gpu_blocks_override=BLOCKS, **options)
    crowd = Crowd(engine, random.Random(4))
    note_preemptions(engine, crowd.preempted, monkeypatch)
    crowd.run(jobs=6, turns=4)
    names = [cold.add(prompt, length) for prompt, length, _ in crowd.turns]
    cold.finish()
    for name, (*_, reply) in zip(names, crowd.turns, strict=True):
        assert_same(reply, cold.reply(name))
    assert_eventful(crowd)
    if engine.scheduler.tracker is not None and engine.scheduler.tracker.pins is not None:
        assert_jobs_were_followed(engine.scheduler.tracker)
    assert not engine.scheduler.gap_filler.rows
    assert engine.pool.get_num_free_blocks() == BLOCKS - 1


def assert_eventful(crowd: Crowd) -> None:
    stats = crowd.engine.scheduler.segment_stats
    assert len(crowd.turns) == 24
    assert stats.fill_tokens > 5 * BLOCK
    assert sum(stats.segments.values()) > 2
    assert crowd.preempted
    assert crowd.resets
    assert sum(reply.cached for *_, reply in crowd.turns) > 0


def assert_jobs_were_followed(tracker: JobTracker) -> None:
    """Pins were kept, used and lost: replies must be the same either way."""
    counts = tracker.count()
    assert (counts.jobs, set(counts.tools)) == (6, set(TOOLS))
    assert {view.turn_count for view in tracker.view_jobs()} == {4}
    assert counts.pins.ended["returned"] > 0
    assert sum(counts.pins.ended.values()) > counts.pins.ended["returned"]


def note_preemptions(engine: LiveEngine, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    preempt = engine.scheduler._preempt_request

    def note(request: Any, *args: Any, **kwargs: Any) -> None:
        names.append(request.request_id)
        preempt(request, *args, **kwargs)

    monkeypatch.setattr(engine.scheduler, "_preempt_request", note)
