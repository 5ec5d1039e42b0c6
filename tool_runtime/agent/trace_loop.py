"""The loop of a job that was recorded without text: its requests are sent as tokens, at the recorded pace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from openai import AsyncOpenAI

from tool_runtime.agent.agent_loop import JobOutcome, LoopObserver, no_options
from tool_runtime.agent.executor import ToolExecutor
from tool_runtime.agent.job import Job
from tool_runtime.agent.model_client import ModelClient, RequestOutcome


class TraceLoop:
    """Sends every turn of the recording, whatever the replies are: what is `AgentLoop`'s is the same here.

    `write_prompt` gives the token ids that a turn (from 0) is asked with, `request_options` further fields of its
    request body.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        executor: ToolExecutor,
        *,
        write_prompt: Callable[[int], Sequence[int]],
        clock: Callable[[], float],
        observer: LoopObserver,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        request_options: Callable[[int], Mapping[str, Any]] = no_options,
        max_retries: int = 2,
        session_prefix: str = "",
    ) -> None:
        self._model = ModelClient(
            client, model, clock=clock, sleep=sleep, max_retries=max_retries, session_prefix=session_prefix
        )
        self._executor = executor
        self._sleep = sleep
        self._observer = observer
        self._write_prompt = write_prompt
        self._request_options = request_options

    async def run(self, job: Job) -> JobOutcome:
        """Run a job. A failed request ends it and makes a failed outcome. Raises ValueError for a job without turns."""
        if not job.turns:
            raise ValueError(f"job {job.id} has no turns to follow")
        requests: list[RequestOutcome] = []
        for number in range(len(job.turns)):
            if number:
                await self._pass_time(job, number - 1)
            requests.append(await self._ask(job, number))
            if requests[-1].error is not None:
                break
        error = requests[-1].error
        return JobOutcome(
            job_id=job.id,
            started_s=requests[0].sent_s,
            finished_s=requests[-1].finished_s,
            turns=job.turns[: len(requests) - (error is not None)],
            status="finished" if error is None else "failed",
            error=error,
        )

    async def _ask(self, job: Job, turn: int) -> RequestOutcome:
        _, request = await self._model.complete(job.id, turn, self._write_prompt(turn), self._request_options(turn))
        self._observer.request_ended(request)
        return request

    async def _pass_time(self, job: Job, number: int) -> None:
        turn = job.turns[number]
        await self._executor.run(turn.tool_calls, on_end=partial(self._observer.tool_call_ended, job.id, number))
        await self._sleep(turn.pause_s)
