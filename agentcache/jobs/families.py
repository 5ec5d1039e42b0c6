"""Finds which sub-agents of a recorded job begin behind a turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from agentcache.jobs.context_job import ContextJob
from agentcache.jobs.recorded_job import RecordedJob
from tool_runtime.agent.job import Job


class Family:
    """A job under way with its sub-agents, of which `left`, itself among them, have not ended."""

    def __init__(self, job: Job) -> None:
        self.left = len(job.family)
        self._begin: defaultdict[tuple[str | None, int], list[Job]] = defaultdict(list)
        for agent in job.agents:
            assert agent.start is not None
            self._begin[agent.start.parent, agent.start.turn].append(agent)

    def list_beginning(self, thread: str | None, turn: int) -> Sequence[Job]:
        """List the sub-agents that begin behind a turn of the agent `thread`."""
        return self._begin.get((thread, turn), ())


def take_agent(recorded: RecordedJob, agent: Job) -> RecordedJob:
    """Return what was recorded of an agent of the job; only jobs without text have others than the main one."""
    if agent is recorded.job:
        return recorded
    assert isinstance(recorded, ContextJob)
    return replace(recorded, job=agent)
