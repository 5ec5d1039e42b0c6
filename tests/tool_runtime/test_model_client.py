from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx2
import pytest
from fake_vllm import ROLE, Answer, FakeClock, FakeVllm, StreamItem, call_delta, delta, encode, says, usage
from openai import AsyncOpenAI

from tool_runtime.agent.model_client import ModelClient, RequestOutcome
from tool_runtime.agent.reply import Reply

MESSAGES = ({"role": "user", "content": "hi"},)


def ask(server: FakeVllm, clock: FakeClock | None = None, max_retries: int = 2) -> tuple[Reply, RequestOutcome]:
    client = model_client(server.client(), clock or FakeClock(), max_retries)
    outcome = asyncio.run(client.ask("job", 3, MESSAGES, (), {}))
    return outcome.reply, outcome


def model_client(client: AsyncOpenAI, clock: FakeClock, max_retries: int = 2) -> ModelClient:
    return ModelClient(client, "m", clock=clock, sleep=clock.sleep, max_retries=max_retries)


def after(clock: FakeClock, seconds: float) -> Callable[[], None]:
    return lambda: clock.advance(seconds)


def test_times_counts_and_tokens_of_a_request() -> None:
    clock = FakeClock()
    clock.advance(100.0)
    metrics = {"queue_time_ms": 500.0, "time_to_first_token_ms": 1500.0, "generation_time_ms": 3000.0}
    stream: list[StreamItem] = [
        after(clock, 1.0),
        ROLE | {"prompt_token_ids": [1, 2, 3]},
        after(clock, 1.0),
        delta(content="he", token_ids=[4]),
        after(clock, 3.0),
        delta(content="llo", token_ids=[5, 6], finish_reason="stop"),
        usage(3, 3, cached=2, metrics=metrics),
    ]
    reply, outcome = ask(FakeVllm(stream), clock)
    assert outcome == RequestOutcome(
        job_id="job", turn=3, sent_s=100.0, first_token_s=102.0, finished_s=105.0, reply=reply, retries=0, error=None
    )
    assert reply == Reply(
        content="hello",
        prompt_tokens=3,
        output_tokens=3,
        cached_tokens=2,
        queue_s=0.5,
        prefill_s=1.5,
        decode_s=3.0,
        prompt_token_ids=(1, 2, 3),
        output_token_ids=(4, 5, 6),
        finish_reason="stop",
    )


def test_first_token_may_be_a_token_without_text() -> None:
    clock = FakeClock()
    hidden = delta(token_ids=[9])
    call = call_delta(0, "{}", id="x", name="ls")
    end = delta(finish_reason="tool_calls")
    _, outcome = ask(FakeVllm([ROLE, after(clock, 1.0), hidden, after(clock, 1.0), call, end]), clock)
    assert outcome.first_token_s == 1.0


def test_the_request_asks_for_a_stream_with_usage() -> None:
    server = FakeVllm(says("done"))
    ask(server)
    assert server.bodies == [
        {
            "model": "m",
            "messages": list(MESSAGES),
            "stream": True,
            "stream_options": {"include_usage": True},
            "session_id": "job",
        }
    ]


def test_lost_connections_are_tried_again_and_counted() -> None:
    clock = FakeClock()
    refused = httpx2.ConnectError("refused")
    lost_before_output: Answer = [ROLE, httpx2.ReadError("reset")]
    reply, outcome = ask(FakeVllm(refused, lost_before_output, says("done")), clock)
    assert (reply.content, outcome.retries, outcome.error) == ("done", 2, None)
    # The waits between the tries, half a second and then twice that, are the user's waits as well.
    assert (outcome.sent_s, outcome.first_token_s) == (0.0, 1.5)


def test_after_the_last_retry_the_request_has_failed() -> None:
    server = FakeVllm(*[httpx2.ConnectError("refused")] * 3)
    _, outcome = ask(server)
    assert (outcome.retries, outcome.error, outcome.first_token_s) == (2, "connection lost: refused", None)
    assert len(server.bodies) == 3


def test_without_retries_there_is_one_try() -> None:
    server = FakeVllm(httpx2.ConnectError("refused"))
    assert ask(server, max_retries=0)[1].error == "connection lost: refused"
    assert len(server.bodies) == 1


def test_a_connection_lost_after_output_is_not_tried_again() -> None:
    server = FakeVllm([ROLE, delta(content="half"), httpx2.RemoteProtocolError("peer closed connection")])
    reply, outcome = ask(server)
    assert (outcome.error, outcome.retries) == ("connection lost: peer closed connection", 0)
    assert (reply.content, outcome.first_token_s is None) == ("half", False)
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            httpx2.Response(500, json={"error": {"message": "engine\n  died", "code": 500}}),
            "HTTP 500: engine died",
        ),
        (httpx2.Response(429, json={"error": {"message": "busy"}}), "HTTP 429: busy"),
        (httpx2.Response(503), "HTTP 503: Service Unavailable"),
        (httpx2.Response(404, json={"detail": "Not Found"}), "HTTP 404: {'detail': 'Not Found'}"),
        (httpx2.Response(404, text="<html>not here</html>"), "HTTP 404: <html>not here</html>"),
        (httpx2.ReadTimeout("slow"), "the server did not answer within the client's timeout"),
        ([ROLE, httpx2.ReadTimeout("slow")], "the server did not answer within the client's timeout"),
        (
            [ROLE, {"error": {"message": "out of memory", "code": 500}}],
            "the server broke off the stream: out of memory",
        ),
        ([ROLE, "{oops"], "the stream is not JSON: Expecting property name enclosed in double quotes"),
        ([ROLE, delta(content="half")], "the stream ended before the reply was complete"),
        ([ROLE, delta(content="half"), delta(finish_reason="abort")], "the server aborted the request"),
    ],
)
def test_what_the_server_does_wrong_fails_at_once_with_its_cause(answer: Answer, error: str) -> None:
    server = FakeVllm(answer)
    _, outcome = ask(server)
    assert (outcome.error, outcome.retries, len(server.bodies)) == (error, 0, 1)


def test_a_page_of_html_is_cut_to_a_line() -> None:
    _, outcome = ask(FakeVllm(httpx2.Response(502, text="<p>bad\ngateway</p> " * 200)))
    assert outcome.error is not None
    assert outcome.error.startswith("HTTP 502: <p>bad gateway</p>")
    assert len(outcome.error) <= 300


def test_a_server_that_dies_in_mid_stream_over_a_real_connection() -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = encode(ROLE) + encode(delta(content="half"))
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%b\r\n" % (len(body), body))
        await writer.drain()
        writer.close()

    async def run() -> RequestOutcome:
        server = await asyncio.start_server(die, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, AsyncOpenAI(api_key="unused", base_url=f"http://127.0.0.1:{port}/v1") as client:
            return await model_client(client, FakeClock()).ask("job", 0, MESSAGES, (), {})

    outcome = asyncio.run(run())
    assert outcome.reply.content == "half"
    assert outcome.error is not None
    assert outcome.error.startswith("connection lost: ")
    assert outcome.retries == 0


def test_a_cancelled_request_closes_its_stream() -> None:
    closed: list[bool] = []

    class Endless(httpx2.AsyncByteStream):
        def __init__(self) -> None:
            self.streaming = asyncio.Event()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield encode(ROLE)
            self.streaming.set()
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            closed.append(True)

    async def run() -> None:
        stream = Endless()
        server = FakeVllm(httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=stream))
        request = asyncio.create_task(model_client(server.client(), FakeClock()).ask("job", 0, MESSAGES, (), {}))
        await stream.streaming.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(run())
    assert closed


def test_options_reach_the_body_and_win_over_the_session() -> None:
    server = FakeVllm(says("done"))
    options = {"temperature": 0.0, "vllm_xargs": {"a": [1]}, "session_id": "other"}
    asyncio.run(model_client(server.client(), FakeClock()).ask("job", 0, MESSAGES, (), options))
    assert server.bodies[0] == server.bodies[0] | options
    assert server.sessions == ["other"]


@pytest.mark.parametrize(
    ("job", "header"), [("oslo / 7: a%b", "mine-oslo%20/%207:%20a%b"), ("Ærø", "mine-%C3%86r%C3%B8")]
)
def test_a_session_is_named_to_servers_and_routers(job: str, header: str) -> None:
    server, clock = FakeVllm(says("done")), FakeClock()
    client = ModelClient(server.client(), "m", clock=clock, sleep=clock.sleep, max_retries=0, session_prefix="mine-")
    asyncio.run(client.ask(job, 0, MESSAGES, (), {}))
    assert (server.bodies[0]["session_id"], server.sessions) == (f"mine-{job}", [header])
