"""The agent runtime on the real CPU engine, over HTTP: jobs, tool calls and pins as clients and operators see them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from background_server import AUTHORIZED, BLOCK, BLOCKS, SharedServer
from openai import OpenAI
from openai.types.chat import ChatCompletion

from agentcache.engine.constants import REPLY_ARGUMENT
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.server import live_report, snapshot_reader
from tool_runtime.agent.job import ToolCall, Turn
from workloads.bfcl.dataset import read_system_message, read_tools

pytestmark = pytest.mark.engine

SEARCHES = Turn("I will search.", (ToolCall("search_engine_query", '{"keywords": "tea"}'),))
FETCHES = Turn("", (ToolCall("fetch_url_content", '{"url": "https://example.org/"}'),))
ANSWER = Turn("It is tea.")


@dataclass(frozen=True, slots=True)
class Server:
    """One server for all tests here, so each has sessions of its own and looks at what has changed."""

    url: str
    encoder: ReplyEncoder
    client: OpenAI

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers=AUTHORIZED, timeout=30, **options)

    def find_jobs(self, session: str) -> list[dict[str, Any]]:
        answer = self.get(f"/agentcache/jobs/{session}")
        return [] if answer.status_code == httpx.codes.NOT_FOUND else answer.raise_for_status().json()["jobs"]

    def find_job(self, session: str) -> dict[str, Any]:
        (job,) = self.find_jobs(session)
        return job

    def read_engine(self) -> dict[str, Any]:
        (engine,) = self.get("/agentcache/state").raise_for_status().json()["engines"]
        return dict(engine)

    def read_runtime(self) -> dict[str, Any]:
        return dict(self.read_engine()["runtime"])

    def release(self, session: str) -> httpx.Response:
        return httpx.delete(f"{self.url}/agentcache/jobs/{session}", headers=AUTHORIZED, timeout=30)

    def ask(
        self,
        messages: Sequence[Any],
        reply: Turn,
        *,
        headers: dict[str, str] | None = None,
        xargs: dict[str, str] | None = None,
        **body: Any,
    ) -> ChatCompletion:
        forced = {"vllm_xargs": {REPLY_ARGUMENT: self.encoder.encode(reply), **(xargs or {})}, "return_token_ids": True}
        return self.client.chat.completions.create(
            model="tiny",
            messages=list(messages),
            tools=list(read_tools()),  # type: ignore[arg-type]
            extra_headers=headers,
            extra_body={**forced, **body},
        )


@pytest.fixture(scope="module")
def server(shared_server: SharedServer, tiny_model_path: str) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        # Every read is a fresh one.
        patch.setattr(snapshot_reader, "MIN_INTERVAL_S", 0.0)
        patch.setattr(live_report, "MIN_INTERVAL_S", 0.0)
        patch.setattr(live_report, "REST", 0.0)
        shared_server.use("agentcache")
        yield Server(shared_server.url, ReplyEncoder(LocalTokenizer(tiny_model_path)), shared_server.client)


def start_chat(text: str) -> list[Any]:
    return [read_system_message(), {"role": "user", "content": text}]


def continue_chat(messages: list[Any], answer: ChatCompletion, result: str = "Tea is a plant.") -> list[Any]:
    """The chat with the reply as it came back, and what its tools said."""
    message = answer.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": result} for call in message.tool_calls or []]
    return [*messages, message.model_dump(exclude_none=True), *results]


def wait_until(holds: Callable[[], bool]) -> None:
    """What a client does not wait for is done soon after."""
    for _ in range(100):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come to pass")


def test_a_job_is_followed_from_its_call_to_its_answer(server: Server) -> None:
    before = server.read_runtime()
    chat = start_chat("What is tea?")
    first = server.ask(chat, SEARCHES, session_id="two-turns")
    away = server.find_job("two-turns")
    assert (away["session"], away["engine"], away["waits_for"]) == ("two-turns", 0, ["search_engine_query"])
    (pin,) = away["pins"]
    kept = (first.usage.prompt_tokens + first.usage.completion_tokens - 1) // BLOCK  # type: ignore[union-attr]
    assert (pin["turn"], pin["cause"], pin["blocks"], pin["blocks_left"]) == (0, None, kept, kept)
    assert pin["expires_s"] > pin["began_s"]
    assert server.read_runtime()["pins"]["blocks"] >= kept

    second = server.ask(continue_chat(chat, first), ANSWER, session_id="two-turns")
    job = server.find_job("two-turns")
    assert (job["turn_count"], job["call_count"], job["failure_count"], job["running"]) == (2, 1, 0, 0)
    assert (job["waits_for"], job["is_over"]) == ([], False)
    turns = job["turns"]
    assert [(turn["turn"], turn["tools"], turn["status"]) for turn in turns] == [
        (0, ["search_engine_query"], "finished"),
        (1, [], "finished"),
    ]
    assert [turn["prompt_tokens"] for turn in turns] == [first.usage.prompt_tokens, second.usage.prompt_tokens]  # type: ignore[union-attr]
    assert turns[1]["cached_tokens"] == kept * BLOCK == second.usage.prompt_tokens_details.cached_tokens  # type: ignore[union-attr]
    assert (turns[1]["recomputed_tokens"], turns[1]["diverged_at"]) == (0, None)
    for turn in turns:
        assert turn["arrived_s"] <= turn["scheduled_s"] <= turn["first_token_s"] <= turn["finished_s"]
    (returned, *_) = job["pins"]
    assert (returned["turn"], returned["cause"], returned["blocks_left"]) == (0, "returned", 0)
    after = server.read_runtime()
    assert after["pins"]["ended"]["returned"] == before["pins"]["ended"].get("returned", 0) + 1
    asked, answered = before["answer_latency_s"], after["answer_latency_s"]
    assert answered["count"] == asked["count"] + 1
    # Totals are told in microseconds.
    latency_s = turns[1]["finished_s"] - turns[0]["arrived_s"]
    assert answered["total"] - asked["total"] == pytest.approx(latency_s, abs=2e-6)


def test_a_prompt_that_was_rewritten_shows_where(server: Server) -> None:
    chat = start_chat("What is coffee?")
    first = server.ask(chat, SEARCHES, session_id="rewritten")
    rewritten = [chat[0], {"role": "user", "content": "What is cocoa?"}, *continue_chat(chat, first)[2:]]
    server.ask(rewritten, ANSWER, session_id="rewritten")
    diverged_at = server.find_job("rewritten")["turns"][1]["diverged_at"]
    assert diverged_at % BLOCK == 0
    assert 0 < diverged_at < first.usage.prompt_tokens  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("session", "options"),
    [
        ("by-body", {"session_id": "by-body"}),
        ("by-header", {"headers": {"X-Session-ID": "by-header"}}),
        ("by-xargs", {"xargs": {"session_id": "by-xargs"}}),
        ("by-dynamo", {"headers": {"x-dynamo-session-id": "by-dynamo"}}),
    ],
)
def test_clients_name_their_session_in_any_way_that_is_known(
    server: Server, session: str, options: dict[str, Any]
) -> None:
    chat = start_chat(f"Who are you, {session}?")
    first = server.ask(chat, SEARCHES, **options)
    server.ask(continue_chat(chat, first), ANSWER, **options)
    assert server.find_job(session)["turn_count"] == 2


@pytest.mark.parametrize(
    ("session", "options"),
    [
        ("ends-itself", {"headers": {"x-dynamo-session-id": "ends-itself"}}),
        ("ends-by-body", {"session_id": "ends-by-body", "headers": {"X-Session-ID": "two-turns"}}),
        ("ends-by-xargs", {"xargs": {"session_id": "ends-by-xargs"}}),
    ],
)
def test_the_last_request_of_a_session_ends_its_job(server: Server, session: str, options: dict[str, Any]) -> None:
    before = server.read_runtime()["jobs_ended"].get("job over", 0)
    chat = start_chat(f"How long is it, {session}?")
    first = server.ask(chat, SEARCHES, **options)
    assert server.find_job(session)["waits_for"]
    final = {**options.get("headers", {}), "x-dynamo-session-final": "true"}
    server.ask(continue_chat(chat, first), ANSWER, **{**options, "headers": final})
    wait_until(lambda: server.find_jobs(session) == [])
    assert server.read_runtime()["jobs_ended"]["job over"] == before + 1


def test_requests_without_a_session_join_by_what_they_repeat(server: Server) -> None:
    chat = start_chat("Which tool is it?")
    before = server.read_runtime()
    # A block must end within the reply: what ends before it is also in jobs that only share the system message.
    long_call = Turn("I will look it up, and then I will tell. " * 6, FETCHES.tool_calls)
    first = server.ask(chat, long_call)
    second = server.ask(continue_chat(chat, first), ANSWER)
    after = server.read_runtime()
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens  # type: ignore[union-attr,operator]
    assert after["jobs"] == before["jobs"] + 1
    gaps = [runtime["tools"].get("fetch_url_content", {"gaps": 0})["gaps"] for runtime in (before, after)]
    assert gaps == [gaps[0], gaps[0] + 1]
    # Another chat with the same system message is another job.
    server.ask(start_chat("Something else?"), ANSWER)
    assert server.read_runtime()["jobs"] == before["jobs"] + 2


def test_a_job_that_is_deleted_keeps_nothing(server: Server) -> None:
    server.ask(start_chat("Wait for me?"), SEARCHES, session_id="deleted")
    (pin,) = server.find_job("deleted")["pins"]
    before = server.read_runtime()["pins"]
    answer = server.release("deleted").json()
    assert (answer["released"], [job["turns"] for job in answer["ended"]]) == (True, [1])
    after = server.read_runtime()["pins"]
    assert after["blocks"] == before["blocks"] - pin["blocks"]
    assert after["ended"]["released"] == before["ended"].get("released", 0) + 1
    assert server.find_jobs("deleted") == []
    assert server.release("deleted").status_code == httpx.codes.NOT_FOUND


def test_a_client_that_vanishes_leaves_nothing_behind(server: Server) -> None:
    before = server.read_runtime()
    endless = Turn("And so on. " * 300)
    messages = start_chat("Tell me all?")
    stream: Any = server.client.chat.completions.create(
        model="tiny",
        messages=messages,
        stream=True,
        extra_body={"vllm_xargs": {REPLY_ARGUMENT: server.encoder.encode(endless)}, "session_id": "vanished"},
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    assert server.find_job("vanished")["running"] == 1
    stream.close()
    wait_until(lambda: server.find_job("vanished")["running"] == 0)
    job = server.find_job("vanished")
    assert (job["turn_count"], job["failure_count"], job["pins"]) == (0, 1, [])
    assert [turn["status"] for turn in job["turns"]] == ["aborted"]
    after = server.read_engine()
    assert after["runtime"]["pins"]["began"] == before["pins"]["began"]
    assert after["blocks"] == {"total": BLOCKS, "used": 0, "free": BLOCKS, "tokens_per_block": BLOCK}
    assert after["requests"] == {"running": 0, "waiting": 0}


def test_operators_see_jobs_tools_and_pins_but_no_session(server: Server) -> None:
    chat = start_chat("What do you see?")
    first = server.ask(chat, SEARCHES, session_id="is-shown")
    server.ask(continue_chat(chat, first), FETCHES, session_id="is-shown")
    engine = server.read_engine()
    runtime = engine["runtime"]
    assert (engine["policy"], engine["knobs"]["runtime"]["tool_parser"]) == ("agentcache", "hermes")
    assert runtime["tools"]["search_engine_query"]["gaps"] > 0
    assert runtime["tools"]["search_engine_query"]["seconds"] > 0

    metrics = server.get("/metrics").text
    assert re.search(r'^agentcache:tool_gaps_total\{engine="0",tool="search_engine_query"\} \d', metrics, re.MULTILINE)
    values = dict(re.findall(r'^agentcache:(\w+)\{engine="0"\} (\S+)$', metrics, re.MULTILINE))
    shown = {name: float(values[name]) for name in ("jobs", "pins_begun_total", "prompt_tokens_total")}
    assert shown == {
        "jobs": runtime["jobs"],
        "pins_begun_total": runtime["pins"]["began"],
        "prompt_tokens_total": runtime["prompt_tokens"],
    }
    assert 'agentcache:pins_ended_total{cause="returned",engine="0"}' in metrics
    assert "is-shown" not in metrics

    page = server.get("/agentcache/report", params={"refresh": 0})
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for text in ("is-shown", "search_engine_query", "fetch_url_content"):
        assert text in page.text


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/agentcache/state"),
        ("GET", "/agentcache/report"),
        ("GET", "/agentcache/jobs/guarded"),
        ("DELETE", "/agentcache/jobs/guarded"),
        ("POST", "/v1/chat/completions"),
    ],
)
def test_nobody_gets_in_without_the_api_key(server: Server, method: str, path: str, headers: dict[str, str]) -> None:
    if not server.find_jobs("guarded"):
        server.ask(start_chat("Is it safe?"), SEARCHES, session_id="guarded")
    final = {"x-dynamo-session-id": "guarded", "x-dynamo-session-final": "true"}
    answer = httpx.request(method, f"{server.url}{path}", headers=headers | final)
    assert answer.status_code == httpx.codes.UNAUTHORIZED
    assert server.find_job("guarded")["turn_count"] == 1
