"""Loops between model, tools and human: asks, runs the calls of the reply, waits for what is said, asks again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from tool_runtime.agent.executor import ExecutedCall, ToolExecutor
from tool_runtime.agent.job import Job, Message, Turn
from tool_runtime.agent.model_client import ModelClient, RequestOutcome
from tool_runtime.agent.reply import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """A job that ended: first request sent to last reply received, in seconds, and the turns it did.

    A job that still called tools at the step limit is finished, `stopped_by_limit`; its last turn has calls
    without results.
    """

    job_id: str
    started_s: float
    finished_s: float
    turns: tuple[Turn, ...]
    status: Literal["finished", "failed"]
    error: str | None = None
    stopped_by_limit: bool = False


class LoopObserver(Protocol):
    """Is told as each thing ends, failures included, before the loop goes on."""

    def request_ended(self, outcome: RequestOutcome) -> None:
        """Note a request that got its reply, or failed."""

    def tool_call_ended(self, job_id: str, turn: int, executed: ExecutedCall) -> None:
        """Note a call that has its result."""


async def wait_for_nobody(_turn: int) -> None:
    """Go on at once behind a turn: no sub-agents were recorded."""


def no_options(_turn: int) -> Mapping[str, Any]:
    """Return no request options: everything is left to the server's defaults."""
    return {}


class AgentLoop:
    """Does jobs with one model and one set of tools.

    `request_options` gives, for a turn (from 0), further fields of the request body: sampling parameters, vLLM's
    own fields. A job goes on while replies call tools, or where its recording has something said behind a turn.
    After `max_tool_steps` such turns the model is asked once more, and then no more.
    """

    def __init__(
        self,
        model: ModelClient,
        executor: ToolExecutor,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        observer: LoopObserver | None = None,
        request_options: Callable[[int], Mapping[str, Any]] = no_options,
        max_tool_steps: int = 20,
    ) -> None:
        self._model = model
        self._executor = executor
        self._sleep = sleep
        self._observer = observer
        self._request_options = request_options
        self._max_tool_steps = max_tool_steps

    async def run(self, job: Job) -> JobOutcome:
        """Send `job.messages` and `job.tools`, and follow the calls. A failed request makes a failed outcome.

        What the recording has said behind a turn is sent after its pause, which follows the results of the calls.
        Cancelling it cancels the request or the calls under way; the observer is not told of those.
        """
        messages = list(job.messages)
        turns: list[Turn] = []
        reply, request = await self._ask(job, 0, messages)
        started_s = request.sent_s
        while request.error is None and len(turns) < self._max_tool_steps:
            recorded = job.turns[len(turns)] if len(turns) < len(job.turns) else Turn()
            if not reply.tool_calls and not recorded.said:
                break
            executed = await self._run_calls(job, len(turns), reply)
            await self._sleep(recorded.pause_s)
            results = tuple(each.result for each in executed)
            turns.append(Turn(reply.content, reply.tool_calls, results, recorded.pause_s, recorded.said))
            messages += [_assistant_message(reply), *map(_tool_message, executed), *recorded.said]
            reply, request = await self._ask(job, len(turns), messages)
        if request.error is None:
            turns.append(Turn(reply.content, reply.tool_calls))
        return JobOutcome(
            job_id=job.id,
            started_s=started_s,
            finished_s=request.finished_s,
            turns=tuple(turns),
            status="finished" if request.error is None else "failed",
            error=request.error,
            stopped_by_limit=request.error is None and bool(reply.tool_calls),
        )

    async def _ask(self, job: Job, turn: int, messages: Sequence[Message]) -> tuple[Reply, RequestOutcome]:
        reply, request = await self._model.ask(job.id, turn, messages, job.tools, self._request_options(turn))
        if self._observer is not None:
            self._observer.request_ended(request)
        return reply, request

    async def _run_calls(self, job: Job, turn: int, reply: Reply) -> list[ExecutedCall]:
        def tell(executed: ExecutedCall) -> None:
            if self._observer is not None:
                self._observer.tool_call_ended(job.id, turn, executed)

        return await self._executor.run(reply.tool_calls, on_end=tell)


def _assistant_message(reply: Reply) -> Message:
    if not reply.tool_calls:
        return {"role": "assistant", "content": reply.content}
    return {
        "role": "assistant",
        "content": reply.content or None,
        "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ],
    }


def _tool_message(executed: ExecutedCall) -> Message:
    return {"role": "tool", "tool_call_id": executed.call.id, "content": executed.result.content}


class TraceLoop:
    """Sends every turn of a recording without text, at the recorded pace, whatever the replies are.

    `write_prompt` gives the token ids that a turn (from 0) is asked with, `request_options` further fields of its
    request body. `turn_ended` gets each turn whose reply has come, and holds up what comes behind it.
    """

    def __init__(
        self,
        model: ModelClient,
        executor: ToolExecutor,
        *,
        write_prompt: Callable[[int], Sequence[int]],
        observer: LoopObserver,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        request_options: Callable[[int], Mapping[str, Any]] = no_options,
        turn_ended: Callable[[int], Awaitable[None]] = wait_for_nobody,
    ) -> None:
        self._model = model
        self._executor = executor
        self._sleep = sleep
        self._observer = observer
        self._write_prompt = write_prompt
        self._request_options = request_options
        self._turn_ended = turn_ended

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
            await self._turn_ended(number)
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
