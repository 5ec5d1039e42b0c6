"""Large newcomers among many short jobs whose pins fill most of the cache: nobody waits without a bound."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from sizes import pick_size

from agentcache.models.catalog import resolve_model
from agentcache.policy.step_cost import Row
from agentcache.sim.clock import VirtualClock
from agentcache.sim.engine import SimulatedEngine
from agentcache.sim.engine_shape import EngineShape
from tool_runtime.agent.job import ToolCall

LOOK = ToolCall("look", "{}")
JOBS, JOB_TOKENS, GAP_S = 30, 2_000, 1.0
NEW_TOKENS, NEW_EVERY_S, NEW_UNTIL_S = 20_000, 2.0, 60.0
SHAPE = {"cache_tokens": 100_000, "block_size": 16, "max_num_batched_tokens": 8192, "max_num_seqs": 256}


class CoarseGpu:
    """Computes prompts as an H200 does those of an 8B model, and decodes ten of its steps as one."""

    def step_s(self, rows: Sequence[Row]) -> float:
        return 0.1 + 3e-5 * sum(row.query for row in rows) if rows else 0.0


class Waited(NamedTuple):
    arrived_s: float
    admitted_s: float

    @property
    def seconds(self) -> float:
        return self.admitted_s - self.arrived_s


class Crowd:
    """Jobs that ask again `GAP_S` after each reply, and newcomers with one question, until all newcomers have answers.

    `waited` is by the request's name; that of a newcomer begins with "new".
    """

    def __init__(self, policy: str, **knobs: Any) -> None:
        shape = EngineShape(
            model_path=resolve_model("shape:llama-3.1-8b").path, **SHAPE, knobs={"gpu": "h200", **knobs}
        )
        self.engine = SimulatedEngine(shape, policy, CoarseGpu(), VirtualClock())
        self.waited: dict[str, Waited] = {}
        self._token = 0
        # Time, name, prompt.
        self._planned: list[tuple[float, str, list[int]]] = []
        self._asked: dict[str, list[int]] = {}

    def run(self) -> dict[str, Waited]:
        for job in range(JOBS):
            self._plan(0.1 * job, f"job {job}", self._write(JOB_TOKENS))
        newcomers = int(NEW_UNTIL_S / NEW_EVERY_S)
        for number in range(newcomers):
            self._plan(3.0 + NEW_EVERY_S * number, f"new {number}", self._write(NEW_TOKENS))
        clock = self.engine.clock
        while sum(name.startswith("new") for name in self.waited) < newcomers:
            if self.engine.idle:
                clock.advance_to(max(clock.now(), self._planned[0][0]))
            while self._planned and self._planned[0][0] <= clock.now():
                self._ask(*heapq.heappop(self._planned)[1:])
            clock.advance_to(self.engine.begin_step())
            for times in self.engine.end_step().finished:
                assert times.scheduled_s is not None
                self.waited[times.request_id] = Waited(times.added_s, times.scheduled_s)
                self._continue(times.request_id)
        return {name: waited for name, waited in self.waited.items() if name.startswith("new")}

    def _ask(self, name: str, prompt: list[int]) -> None:
        is_new = name.startswith("new")
        self._asked[name] = prompt = [*prompt, *self._write(1)]
        session, calls = name.partition("/")[0], () if is_new else (LOOK,)
        self.engine.add(name, prompt, self._reply(name), session_id=session, calls=calls)

    def _continue(self, name: str) -> None:
        prompt = [*self._asked.pop(name), *self._reply(name)]
        if not name.startswith("new"):
            session, _, turn = name.partition("/")
            begins_anew = len(prompt) > 1.5 * JOB_TOKENS
            next_prompt = self._write(JOB_TOKENS) if begins_anew else [*prompt, *self._write(20)]
            self._plan(self.engine.clock.now() + GAP_S, f"{session}/{int(turn or 0) + 1}", next_prompt)

    def _reply(self, name: str) -> list[int]:
        return [7] * (60 if name.startswith("new") else 6)

    def _plan(self, time_s: float, name: str, prompt: list[int]) -> None:
        heapq.heappush(self._planned, (time_s, name, prompt))

    def _write(self, count: int) -> list[int]:
        """Tokens that no other text begins with."""
        self._token += 1
        return [self._token, *range(1000, 999 + count)]


@pytest.mark.parametrize("patience_s", [8.0, 2.0][: pick_size(1, 2)])
def test_whoever_is_out_of_patience_is_neither_held_nor_passed(patience_s: float) -> None:
    crowd = Crowd("agentcache", order={"patience_s": patience_s})
    newcomers = crowd.run()
    assert crowd.engine.scheduler.tracker.pins.began > 100
    assert max(each.seconds for each in newcomers.values()) > patience_s, "they did not crowd"
    for name, one in newcomers.items():
        passed = [
            other
            for other, each in crowd.waited.items()
            if each.arrived_s > one.arrived_s and one.arrived_s + patience_s < each.admitted_s < one.admitted_s
        ]
        assert passed == [], f"{name} waited {one.seconds:.1f} s"
