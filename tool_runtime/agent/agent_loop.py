"""Plays a job's recording: asks the model, plays the calls of its reply, waits for what is said, asks again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from tool_runtime.agent.job import Job, Message, Turn
from tool_runtime.agent.model_client import ModelClient, RequestOutcome
from tool_runtime.agent.recorded_tools import ExecutedCall, RecordedTools, Sleep
from tool_runtime.agent.reply import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """A job that ended: first request sent to last reply received, in seconds, and the turns it did."""

    job_id: str
    started_s: float
    finished_s: float
    turns: tuple[Turn, ...]
    status: Literal["finished", "failed"]
    error: str | None = None


class LoopObserver(Protocol):
    """Is told as each thing ends, failures included, before the loop goes on."""

    def request_ended(self, outcome: RequestOutcome) -> None:
        """Note a request that got its reply, or failed."""

    def tool_call_ended(self, job_id: str, turn: int, executed: ExecutedCall) -> None:
        """Note a call that has its result."""


async def wait_for_nobody(_turn: int) -> None:
    """Go on at once behind a turn: no sub-agents were recorded."""


class AgentLoop:
    """Plays a chat: what the server replies goes into the next request, with what is recorded behind the turn.

    `request_options` gives, for a turn (from 0), further fields of the request body: sampling parameters, vLLM's
    own fields.
    """

    def __init__(
        self,
        model: ModelClient,
        tools: RecordedTools,
        *,
        observer: LoopObserver,
        request_options: Callable[[int], Mapping[str, Any]],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._model = model
        self._tools = tools
        self._observer = observer
        self._request_options = request_options
        self._sleep = sleep

    async def run(self, job: Job) -> JobOutcome:
        """Send `job.messages` and `job.tools`, and follow the calls. A failed request makes a failed outcome.

        It ends with the reply to the last recorded turn, or with one that calls no tool where nothing was said.
        What was said is sent after its pause, which follows the results of the calls. Cancelling it cancels the request
        or the calls under way; the observer is not told of those.
        """
        messages = list(job.messages)
        turns: list[Turn] = []
        request = await self._ask(job, 0, messages)
        started_s = request.sent_s
        for number, recorded in enumerate(job.turns[:-1]):
            reply = request.reply
            if request.error is not None or not (reply.tool_calls or recorded.said):
                break
            executed = await self._tools.run(reply.tool_calls, partial(self._observer.tool_call_ended, job.id, number))
            await self._sleep(recorded.pause_s)
            results = tuple(each.result for each in executed)
            turns.append(Turn(reply.content, reply.tool_calls, results, recorded.pause_s, recorded.said))
            messages += [_assistant_message(reply), *map(_tool_message, executed), *recorded.said]
            request = await self._ask(job, number + 1, messages)
        if request.error is None:
            turns.append(Turn(request.reply.content, request.reply.tool_calls))
        return JobOutcome(
            job_id=job.id,
            started_s=started_s,
            finished_s=request.finished_s,
            turns=tuple(turns),
            status="finished" if request.error is None else "failed",
            error=request.error,
        )

    async def _ask(self, job: Job, turn: int, messages: Sequence[Message]) -> RequestOutcome:
        request = await self._model.ask(job.id, turn, messages, job.tools, self._request_options(turn))
        self._observer.request_ended(request)
        return request


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
        tools: RecordedTools,
        *,
        write_prompt: Callable[[int], Sequence[int]],
        observer: LoopObserver,
        request_options: Callable[[int], Mapping[str, Any]],
        sleep: Sleep = asyncio.sleep,
        turn_ended: Callable[[int], Awaitable[None]] = wait_for_nobody,
    ) -> None:
        self._model = model
        self._tools = tools
        self._write_prompt = write_prompt
        self._observer = observer
        self._request_options = request_options
        self._sleep = sleep
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
        request = await self._model.complete(job.id, turn, self._write_prompt(turn), self._request_options(turn))
        self._observer.request_ended(request)
        return request

    async def _pass_time(self, job: Job, number: int) -> None:
        turn = job.turns[number]
        await self._tools.run(turn.tool_calls, partial(self._observer.tool_call_ended, job.id, number))
        await self._sleep(turn.pause_s)
