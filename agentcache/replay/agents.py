"""Plays the sub-agents of a job beside its main agent, each with a loop of its own."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from agentcache.jobs.families import Family
from agentcache.replay.lane_waits import LaneWaits
from tool_runtime.agent.job import Job
from tool_runtime.agent.recorded_tools import Sleep

# As Claude Code names them.
_AGENT_HEADER = "x-claude-code-agent-id"
_PARENT_HEADER = "x-claude-code-parent-agent-id"


def name_agent(job: Job) -> dict[str, str]:
    """Return the headers that name the agent and the one that began it; a main agent has none."""
    parent = job.start.parent if job.start else None
    named = {_AGENT_HEADER: job.thread, _PARENT_HEADER: parent}
    # Headers are ASCII.
    return {header: quote(name, safe=string.punctuation) for header, name in named.items() if name is not None}


class AgentPlay:
    """Begins a job's sub-agents in `tasks`, by `run`, which waits by a `sleep` of its agent.

    `waits` are those of a closed loop's lanes: an agent that begins is one more that may wait, and one that waits for
    others one less.
    """

    def __init__(
        self,
        job: Job,
        tasks: asyncio.TaskGroup,
        run: Callable[[Job, Sleep], Awaitable[None]],
        waits: LaneWaits | None,
    ) -> None:
        self._family = Family(job)
        self._tasks = tasks
        self._run = run
        self._waits = waits

    async def turn_ended(self, job: Job, turn: int) -> None:
        """Begin what begins behind the turn of this agent, and wait for those that it waits for."""
        beginning = self._family.list_beginning(job.thread, turn)
        self._count(len(beginning))
        tasks = [(agent, self._tasks.create_task(self._play(agent))) for agent in beginning]
        awaited = [task for agent, task in tasks if agent.start is not None and agent.start.is_awaited]
        if awaited:
            self._count(-1)
            await asyncio.wait(awaited)
            self._count(1)

    async def _play(self, agent: Job) -> None:
        assert agent.start is not None
        sleep: Sleep = asyncio.sleep if self._waits is None else self._waits.of(agent.name)
        await sleep(agent.start.delay_s)
        await self._run(agent, sleep)
        self._count(-1)

    def _count(self, more: int) -> None:
        if self._waits is not None:
            self._waits.count(more)
