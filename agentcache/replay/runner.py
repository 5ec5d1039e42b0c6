"""Runs the jobs of one policy against one server, each at its time of arrival."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from openai import AsyncOpenAI, Timeout

from agentcache.engine.constants import CALLS_ARGUMENT, REPLY_ARGUMENT
from agentcache.engine.marks import write_forced_calls
from agentcache.jobs.context_job import ContextJob
from agentcache.jobs.families import take_agent
from agentcache.jobs.lanes import IDLE_CAP_S, Lanes
from agentcache.jobs.recorded_job import RecordedJob
from agentcache.replay.agents import AgentPlay, name_agent
from agentcache.replay.endpoint import Endpoint
from agentcache.replay.lane_waits import LaneWaits
from agentcache.report.events import MEASURED, EventWriter
from agentcache.run.display import ReplayDisplay
from agentcache.run.recorder import JobRecorder
from tool_runtime.agent.agent_loop import AgentLoop, TraceLoop
from tool_runtime.agent.job import Job, ToolCall
from tool_runtime.agent.model_client import ModelClient
from tool_runtime.agent.recorded_tools import RecordedTools, Sleep

# How often to look whether all lanes are warm.
_WARM_UP_POLL_S = 0.05


class ReplayRunner:
    """Runs one policy. Times in events are seconds since the runner was made.

    `session_prefix` tells the sessions from those of other runs against the same server.
    """

    def __init__(
        self,
        policy: str,
        endpoint: Endpoint,
        writer: EventWriter,
        display: ReplayDisplay,
        *,
        block_size: int | None,
        request_timeout_s: float,
        session_prefix: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._endpoint = endpoint
        self._writer = writer
        self._display = display
        self._block_size = block_size
        self._request_timeout_s = request_timeout_s
        self._session_prefix = session_prefix
        began = clock()
        self._clock: Callable[[], float] = lambda: clock() - began

    async def run(self, jobs: Sequence[RecordedJob]) -> int:
        """Run the jobs and return how many failed. Cancelling ends running jobs and records them as interrupted."""
        async with self._connect() as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_job(client, recorded)) for recorded in jobs]
        return sum(not task.result() for task in tasks)

    async def run_lanes(self, lanes: Lanes) -> int:
        """Run a closed loop until it has been measured, and return how many sessions failed.

        The sessions under way are then recorded as interrupted. A lane whose session fails begins no other. Cancelling
        ends the time to measure.
        """
        first = lanes.start()
        waits = LaneWaits(len(first), self._clock, IDLE_CAP_S)
        try:
            async with self._connect() as client, asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._run_lane(client, lanes, waits, recorded)) for recorded in first]
                watch = group.create_task(self._end_measured(lanes, tasks))
                await asyncio.wait(tasks)
                watch.cancel()
        except asyncio.CancelledError:
            lanes.break_off(self._clock())
            raise
        return sum(not task.cancelled() for task in tasks)

    def _connect(self) -> AsyncOpenAI:
        timeout = Timeout(self._request_timeout_s, connect=30)
        return AsyncOpenAI(
            base_url=self._endpoint.base_url,
            api_key=self._endpoint.api_key,
            default_headers=self._endpoint.headers,
            timeout=timeout,
        )

    async def _run_lane(self, client: AsyncOpenAI, lanes: Lanes, waits: LaneWaits, recorded: RecordedJob) -> None:
        """Run one session after another until one fails."""
        while await self._run_job(client, recorded, lanes, waits):
            recorded = lanes.follow()
        waits.count(-1)

    async def _end_measured(self, lanes: Lanes, tasks: Sequence[asyncio.Task[None]]) -> None:
        while (window_s := lanes.window_s) is None:
            await asyncio.sleep(_WARM_UP_POLL_S)
        while not lanes.is_measured(self._clock()):
            await asyncio.sleep(max(0.0, window_s[1] - self._clock()))
        for task in tasks:
            task.cancel()

    async def _run_job(
        self, client: AsyncOpenAI, recorded: RecordedJob, lanes: Lanes | None = None, waits: LaneWaits | None = None
    ) -> bool:
        """Run one job and its sub-agents, which wait by `waits`, and tell whether it finished as recorded."""
        job = recorded.job
        recorder = self._make_recorder(recorded, lanes)

        async def run_agent(agent: Job, sleep: Sleep) -> None:
            one = take_agent(recorded, agent)
            observer = self._make_recorder(one, lanes)
            outcome = await self._make_loop(client, one, observer, sleep, play).run(agent)
            if problem := observer.find_problem(outcome):
                recorder.agent_failed(f"sub-agent {agent.thread}: {problem}")

        await asyncio.sleep(job.arrival_s - self._clock())
        self._display.job_started()
        async with asyncio.TaskGroup() as tasks:
            play = AgentPlay(job, tasks, run_agent, waits)
            sleep = asyncio.sleep if waits is None else waits.of(job.id)
            try:
                outcome = await self._make_loop(client, recorded, recorder, sleep, play).run(job)
            except asyncio.CancelledError:
                measured = lanes is not None and lanes.is_measured(self._clock())
                recorder.job_interrupted(self._clock(), *([MEASURED] if measured else []))
                raise
            event = recorder.job_ended(outcome)
            self._display.job_ended(event)
        return event.status == "finished"

    def _make_recorder(self, recorded: RecordedJob, lanes: Lanes | None) -> JobRecorder:
        return JobRecorder(self._policy, recorded, self._writer, self._block_size, lanes)

    def _make_loop(
        self, client: AsyncOpenAI, recorded: RecordedJob, recorder: JobRecorder, sleep: Sleep, play: AgentPlay
    ) -> AgentLoop | TraceLoop:
        job = recorded.job
        model = ModelClient(
            client,
            self._endpoint.model,
            clock=self._clock,
            sleep=sleep,
            session_prefix=self._session_prefix,
            headers=name_agent(job),
        )
        tools = RecordedTools(job, clock=self._clock, sleep=sleep)
        if isinstance(recorded, ContextJob):
            return TraceLoop(
                model,
                tools,
                write_prompt=recorded.prompt,
                observer=recorder,
                sleep=sleep,
                request_options=lambda turn: _request_options(
                    recorded.reply(turn), "max_tokens", calls=job.turns[turn].tool_calls, tenant=job.tenant
                ),
                turn_ended=partial(play.turn_ended, job),
            )
        return AgentLoop(
            model,
            tools,
            observer=recorder,
            sleep=sleep,
            request_options=lambda turn: _request_options(recorded.reply(turn), "max_completion_tokens"),
        )


def _request_options(
    reply: Sequence[int], limit: str, calls: Sequence[ToolCall] | None = None, tenant: str | None = None
) -> Mapping[str, Any]:
    """Force the reply. `limit` is the API's name for the most tokens; `calls` are those of a reply without text."""
    dictated: dict[str, Any] = {REPLY_ARGUMENT: list(reply)}
    if calls is not None:
        dictated[CALLS_ARGUMENT] = write_forced_calls(calls)
    salted = {} if tenant is None else {"cache_salt": tenant}
    return {limit: len(reply), "temperature": 0, "return_token_ids": True, "vllm_xargs": dictated, **salted}
