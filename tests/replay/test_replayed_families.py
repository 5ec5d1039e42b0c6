"""Sub-agents of a replay, against a server that answers at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer
from test_runner import Run

from agentcache.jobs.context_job import ContextJob, ContextWriter
from agentcache.jobs.families import take_agent
from agentcache.replay.agents import AgentPlay
from agentcache.replay.lane_waits import LaneWaits, Sleep
from tool_runtime.agent.job import Context, Job, Start, Turn

BLOCK = 16
_VOCABULARY = [*range(100, 200)]


def turn(first: int, reply: int = 3, pause_s: float = 0.0) -> Turn:
    return Turn(pause_s=pause_s, context=Context((first,), BLOCK, BLOCK, reply))


def make_family(*agents: tuple[str, Start], turns: int = 3) -> ContextJob:
    children = (
        Job("family", (), turns=(turn(10 * number), turn(10 * number + 1)), thread=name, start=start)
        for number, (name, start) in enumerate(agents, start=1)
    )
    job = Job("family", (), turns=tuple(turn(number) for number in range(turns)), agents=tuple(children))
    return ContextJob(job, ContextWriter(_VOCABULARY))


def play(server: FakeServer, folder: Path, job: ContextJob) -> tuple[int, Run]:
    made = Run(server, folder, 1)
    return asyncio.run(made.runner.run([job])), made


def test_a_parents_next_turn_comes_behind_those_it_waits_for(server: FakeServer, tmp_path: Path) -> None:
    family = make_family(
        ("a", Start(None, 0, 0.05, is_awaited=True)),
        ("b", Start(None, 0, 0.0, is_awaited=True)),
        ("inner", Start("a", 0, 0.0, is_awaited=False)),
        ("left", Start(None, 2, 0.1, is_awaited=False)),
    )
    failed, made = play(server, tmp_path, family)
    events = made.events
    assert failed == 0
    at = {(each.thread, each.turn): each for each in events.requests}
    assert len(at) == 3 + 4 * 2
    assert at["a", 0].sent_s >= at[None, 0].finished_s + 0.05
    assert at["b", 0].sent_s < at["a", 0].sent_s
    assert at["inner", 0].sent_s >= at["a", 0].finished_s
    assert at[None, 1].sent_s >= max(at["a", 1].finished_s, at["b", 1].finished_s)
    # What outlives the main agent is played to its end, and is no part of the job.
    assert at["left", 0].sent_s >= at[None, 2].finished_s + 0.1
    [job] = events.jobs
    assert (job.finished_s, job.turns, job.status) == (at[None, 2].finished_s, 3, "finished")
    assert not events.open_jobs


def test_requests_name_their_agent_and_its_parent(server: FakeServer, tmp_path: Path) -> None:
    starts = {"größer": Start(None, 0, 0.0, is_awaited=True), "inner": Start("größer", 1, 0.0, is_awaited=True)}
    family = make_family(*starts.items(), turns=2)
    server.headers.clear()
    assert play(server, tmp_path, family)[0] == 0
    assert {body["session_id"] for body in server.bodies} == {"family"}
    # The main agent has no name; nor have requests that are not of the run.
    named = Counter(
        (each["x-claude-code-agent-id"], each.get("x-claude-code-parent-agent-id"))
        for each in server.headers
        if "x-claude-code-agent-id" in each
    )
    assert named == {("gr%C3%B6%C3%9Fer", None): 2, ("inner", "gr%C3%B6%C3%9Fer"): 2}
    assert len(server.bodies) == 2 + 2 + 2


def test_a_sub_agent_that_fails_makes_its_job_fail(server: FakeServer, tmp_path: Path) -> None:
    family = make_family(("a", Start(None, 0, 0.0, is_awaited=True)))

    def refuse(body: Mapping[str, Any]) -> None:
        server.refused_jobs = {"family"} if body["prompt"] == family_prompt else set()

    family_prompt = take_agent(family, family.job.agents[0]).prompt(1)
    server.on_request = refuse
    failed, made = play(server, tmp_path, family)
    [job] = made.events.jobs
    assert (failed, job.status, job.turns) == (1, "failed", 3)
    assert job.error == "sub-agent a: HTTP 500: the engine is on fire"


def test_cancelling_a_family_ends_all_of_it(server: FakeServer, tmp_path: Path) -> None:
    family = make_family(
        ("a", Start(None, 0, 3600.0, is_awaited=False)), ("b", Start(None, 0, 3600.0, is_awaited=True))
    )

    async def run() -> Run:
        made = Run(server, tmp_path, 1)
        task = asyncio.create_task(made.runner.run([family]))
        while not made.events.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return made

    [job] = asyncio.run(asyncio.wait_for(run(), 30)).events.jobs
    assert (job.job, job.status, job.turns) == ("family", "interrupted", 1)


def test_in_a_loop_waits_end_soon_when_all_agents_wait() -> None:
    """The main agent waits for one that waits an hour, and another one waits as long beside it."""
    starts = ("a", Start(None, 0, 3600.0, is_awaited=True)), ("b", Start(None, 0, 3600.0, is_awaited=False))
    family = make_family(*starts).job
    waits = LaneWaits(1, time.monotonic, 0.05)
    ran: list[str] = []

    async def run_agent(agent: Job, sleep: Sleep) -> None:
        await sleep(3600.0)
        ran.append(agent.name)

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            agents = AgentPlay(family, tasks, run_agent, waits)
            await agents.turn_ended(family, 0)
            await waits.of(family.id)(3600.0)

    asyncio.run(asyncio.wait_for(run(), 30))
    assert sorted(ran) == ["family/a", "family/b"]
