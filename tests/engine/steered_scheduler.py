"""Our scheduler without a worker, under a clock that is set by hand, and jobs that are asked turn by turn."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from hand_clock import Clock
from lone_scheduler import LoneScheduler, make_config, make_scheduler

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.rpc.core_calls import release
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.setup import jobs
from tool_runtime.agent.job import ToolCall
from tool_runtime.learning.tool_key import ToolKey
from tool_runtime.learning.ttl import Hold

STEERED = ("continuum-code", "continuum-paper", "continuum+asymcache", "agentcache")
SEARCH = ToolCall("search", "{}")


def make_lone(
    model_path: str,
    policy: str,
    blocks: int = 64,
    in_flight: int = 1,
    engine: Mapping[str, Any] | None = None,
    **knobs: Any,
) -> LoneScheduler:
    scheduler = make_scheduler(make_config(model_path, SCHEDULER_CLASS, engine, policy=policy, **knobs), blocks)
    assert isinstance(scheduler, AgentScheduler)
    scheduler.clock = Clock()
    return LoneScheduler(scheduler, in_flight, shadow=True)


class Patient:
    """Holds all turns for as long."""

    def decide(self, _: object) -> Hold:
        return Hold(1e4, 1.0)


def make_patient(model_path: str, policy: str, blocks: int = 64, **knobs: Any) -> LoneScheduler:
    """As `make_lone`, but the policy holds all turns for as long."""
    estimators = ("ContinuumCode", "ContinuumPaper", "HazardTtl")
    with mock.patch.multiple(jobs, **dict.fromkeys(estimators, lambda **_: Patient())):
        return make_lone(model_path, policy, blocks, **knobs)


def run_until_idle(lone: LoneScheduler) -> list[Any]:
    """A second a step."""
    steps = []
    while not lone.idle:
        lone.scheduler.clock.now_s += 1.0
        steps.append(lone.step())
        lone.scheduler.check_integrity()
        assert len(steps) < 5000, "nothing goes on"
    return steps


def do_turn(
    lone: LoneScheduler, name: str, prompt: list[int], calls: tuple[ToolCall, ...], **options: Any
) -> list[int]:
    """The tokens of prompt and reply."""
    lone.add(name, prompt, output_tokens=20, calls=calls, **options)
    tokens: list[int] = next(step.finished[name] for step in run_until_idle(lone) if name in step.finished)
    return tokens


def tokens_of(number: int, count: int) -> list[int]:
    return [1 + (number * 1009 + i) % 7000 for i in range(count)]


def do_turn_in_no_time(lone: LoneScheduler, name: str, prompt: list[int], **options: Any) -> None:
    lone.add(name, prompt, output_tokens=2, **{"calls": (), **options})
    while not lone.idle:
        lone.step()
        lone.scheduler.check_integrity()


def learn_that_tools_are_fast(lone: LoneScheduler, tool: ToolKey = ToolKey("search")) -> None:  # noqa: B008 (frozen)
    """By 90 gaps of 0.3 s, and evictions that cost next to nothing: what the model computes costs little more."""
    for number in range(90):
        lone.scheduler.tracker.runtime.arrived(f"past {number}", f"past {number} 1")
        lone.scheduler.tracker.runtime.finished(f"past {number}", f"past {number} 1", [tool])
        lone.scheduler.clock.now_s += 0.3
        lone.scheduler.tracker.runtime.arrived(f"past {number}", f"past {number} 2")
        lone.scheduler.tracker.runtime.finished(f"past {number}", f"past {number} 2", [])
    lone.scheduler.tracker.runtime.load.admitted(wait_s=5.0, rebuilt_s=1e-6)


@dataclass
class Life:
    """Random jobs of random tenants: turns, aborts, resets, releases, and tools that never return."""

    lone: LoneScheduler
    rng: random.Random
    jobs: int = 0
    away: list[tuple[float, str, int, list[int]]] = field(default_factory=list)
    running: dict[str, tuple[str, int]] = field(default_factory=dict)

    def step(self) -> None:
        clock = self.lone.scheduler.clock
        clock.now_s += self.rng.choice((0.01, 0.1, 1.0, 5.0))
        if self.rng.random() < 0.15:
            self.jobs += 1
            self._ask(f"job {self.jobs}", 0, tokens_of(self.rng.randrange(3), 70) + tokens_of(self.jobs, 60))
        back = [each for each in self.away if each[0] <= clock.now_s]
        self.away = [each for each in self.away if each[0] > clock.now_s]
        for _, job, turn, tokens in back:
            self._ask(job, turn, tokens + tokens_of(self.jobs + turn, self.rng.randint(1, 40)))
        self._disturb()
        for name, tokens in self.lone.step().finished.items():
            job, turn = self.running.pop(name)
            if turn < 6 and len(tokens) < 400 and self.rng.random() < 0.9:
                gap_s = self.rng.choice((0.1, 1.0, 3.0, 20.0))
                self.away.append((clock.now_s + gap_s, job, turn + 1, tokens))
        self.lone.scheduler.check_integrity()

    def drain(self) -> None:
        self.away.clear()
        run_until_idle(self.lone)

    def _ask(self, job: str, turn: int, prompt: list[int]) -> None:
        name = f"{job} turn {turn}"
        tenant = f"tenant {len(job) % 2}"
        calls = self.rng.choice(((SEARCH,), (), (SEARCH, ToolCall("bash", '{"command": "make"}')), None))
        session = None if self.rng.random() < 0.2 else job
        self.running[name] = (job, turn)
        self.lone.add(name, prompt, self.rng.randint(1, 40), calls=calls, session_id=session, cache_salt=tenant)

    def _disturb(self) -> None:
        scheduler = self.lone.scheduler
        if (live := list(self.running)) and self.rng.random() < 0.03:
            name = self.rng.choice(live)
            del self.running[name]
            self.lone.abort(name)
        if self.rng.random() < 0.01:
            # vLLM raises where the blocks of those that run are freed late.
            running = self.rng.random() < 0.5 and not scheduler.defer_block_free
            scheduler.reset_prefix_cache(reset_running_requests=running)
        if self.rng.random() < 0.05:
            release(scheduler.tracker, f"job {self.rng.randint(1, self.jobs + 1)}")
