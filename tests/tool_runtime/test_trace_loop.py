from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx2
import pytest
from fake_vllm import FakeClock, FakeVllm, completes

from tool_runtime.agent.agent_loop import JobOutcome, TraceLoop
from tool_runtime.agent.job import Context, Job, ToolCall, ToolResult, Turn
from tool_runtime.agent.model_client import ModelClient, RequestOutcome
from tool_runtime.agent.recorded_tools import ExecutedCall, RecordedTools

CONTEXT = Context((1,), 16, 3, 2)


class Record:
    """What the loop told, with the time of each thing."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.told: list[tuple[str, int, float]] = []
        self.requests: list[RequestOutcome] = []

    def request_ended(self, outcome: RequestOutcome) -> None:
        self.requests.append(outcome)
        self.told.append(("request", outcome.turn, self._clock()))

    def tool_call_ended(self, job_id: str, turn: int, executed: ExecutedCall) -> None:
        assert job_id == "job-7"
        self.told.append((executed.call.name, turn, self._clock()))


def make_turn(*durations_s: float, pause_s: float = 0.0) -> Turn:
    calls = tuple(ToolCall("wait", "{}") for _ in durations_s)
    results = tuple(ToolResult("", seconds) for seconds in durations_s)
    return Turn(tool_calls=calls, results=results, pause_s=pause_s, context=CONTEXT)


def run(
    server: FakeVllm,
    *turns: Turn,
    clock: FakeClock | None = None,
    options: Callable[[int], Mapping[str, Any]] = lambda _turn: {},
) -> tuple[JobOutcome, Record]:
    """Turn n is sent as the tokens n, n, n."""
    clock = clock or FakeClock()
    record = Record(clock)
    job = Job("job-7", (), turns=turns)
    loop = TraceLoop(
        ModelClient(server.client(), "m", clock=clock, sleep=clock.sleep),
        RecordedTools(job, clock=clock, sleep=clock.sleep),
        write_prompt=lambda turn: [turn] * 3,
        observer=record,
        sleep=clock.sleep,
        request_options=options,
    )
    return asyncio.run(loop.run(job)), record


def test_every_turn_is_sent_as_tokens_with_session_and_options() -> None:
    server = FakeVllm(completes(7, 8), completes(9))
    outcome, _ = run(server, make_turn(), make_turn(), options=lambda turn: {"max_tokens": 2 - turn})
    assert outcome.status == "finished"
    assert outcome.turns == (make_turn(), make_turn())
    assert server.paths == ["/v1/completions"] * 2
    assert [body["prompt"] for body in server.bodies] == [[0, 0, 0], [1, 1, 1]]
    assert [(body["session_id"], body["max_tokens"], body["stream"]) for body in server.bodies] == [
        ("job-7", 2, True),
        ("job-7", 1, True),
    ]


class WatchedTokens(list[int]):
    """Knows which modules have gone through it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(tokens)
        self.readers: list[str] = []

    def __iter__(self) -> Iterator[int]:
        self.readers.append(sys._getframe(1).f_globals["__name__"])
        return super().__iter__()


def test_what_writes_json_is_all_that_goes_through_a_prompt() -> None:
    server = FakeVllm(completes(7))
    clock = FakeClock()
    client = ModelClient(server.client(), "m", clock=clock, sleep=clock.sleep, max_retries=0)
    prompt = WatchedTokens([5, 6])
    asyncio.run(client.complete("job-7", 0, prompt, {}))
    assert [body["prompt"] for body in server.bodies] == [[5, 6]]
    assert prompt.readers == ["json.encoder"]


def test_what_the_server_tells_is_measured() -> None:
    clock = FakeClock()
    stream = completes(7, 8, prompt=(5, 6))
    server = FakeVllm([lambda: clock.advance(1.0), stream[0], lambda: clock.advance(2.0), *stream[1:]])
    _, record = run(server, make_turn(), clock=clock)
    (request,) = record.requests
    assert (request.reply.prompt_token_ids, request.reply.output_token_ids) == ((5, 6), (7, 8))
    assert (request.reply.prompt_tokens, request.reply.output_tokens, request.reply.cached_tokens) == (2, 2, 16)
    assert (request.reply.queue_s, request.reply.prefill_s, request.reply.decode_s) == (0.002, 0.03, 0.4)
    # The first chunk has no token yet.
    assert (request.sent_s, request.first_token_s, request.reply.finish_reason) == (0.0, 3.0, "length")


def test_calls_are_waited_for_and_then_the_pause() -> None:
    server = FakeVllm(*[completes(7)] * 3)
    outcome, record = run(server, make_turn(2.0), make_turn(pause_s=30.0), make_turn(2.0, pause_s=9.0))
    assert record.told == [("request", 0, 0.0), ("wait", 0, 2.0), ("request", 1, 2.0), ("request", 2, 32.0)]
    assert (outcome.started_s, outcome.finished_s) == (0.0, 32.0), "nothing is waited for after the last reply"


def test_a_failed_request_ends_the_job() -> None:
    server = FakeVllm(completes(7), httpx2.Response(500, json={"error": {"message": "engine died"}}))
    outcome, record = run(server, make_turn(), make_turn(), make_turn())
    assert (outcome.status, outcome.error, len(outcome.turns)) == ("failed", "HTTP 500: engine died", 1)
    assert [request.error for request in record.requests] == [None, "HTTP 500: engine died"]


def test_a_lost_connection_is_retried_only_before_first_token() -> None:
    server = FakeVllm(httpx2.ConnectError("refused"), completes(7))
    outcome, record = run(server, make_turn())
    assert (outcome.status, record.requests[0].retries, record.requests[0].finished_s) == ("finished", 1, 0.5)
    broken = FakeVllm([*completes(7)[:2], httpx2.ReadError("reset")])
    outcome, record = run(broken, make_turn())
    assert (outcome.status, record.requests[0].retries) == ("failed", 0)
    assert record.requests[0].reply.output_token_ids == (7,)


def test_a_job_without_turns_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="job-7 has no turns"):
        run(FakeVllm())
