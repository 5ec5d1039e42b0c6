"""The real engine on the CPU, over HTTP, with the openai client."""

from __future__ import annotations

import itertools
import time

import httpx
import pytest
from background_server import AUTHORIZED, BLOCK, SharedServer
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletion

from agentcache.engine.constants import REPLY_ARGUMENT, ROLES_ARGUMENT
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.models.catalog import resolve_model
from tool_runtime.agent.job import ToolCall, Turn

pytestmark = pytest.mark.engine

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKS_FOR_WEATHER = Turn("I will look.", (ToolCall("weather", '{"city": "Oslo \\"east\\" – Ø"}'),))


@pytest.fixture(scope="module")
def client(shared_server: SharedServer) -> OpenAI:
    # The policy that evicts in the oddest order: blocks go from the middle of what a chat goes on from.
    shared_server.use("asymcache")
    return shared_server.client


@pytest.fixture(scope="module")
def encoder() -> ReplyEncoder:
    return ReplyEncoder(LocalTokenizer(resolve_model("tiny").path))


def force(tokens: list[int]) -> dict[str, object]:
    return {"vllm_xargs": {REPLY_ARGUMENT: tokens}, "return_token_ids": True, "session_id": "job"}


def test_tool_call_is_parsed_and_the_next_turn_hits_its_blocks(client: OpenAI, encoder: ReplyEncoder) -> None:
    messages = [{"role": "user", "content": "What is the weather in the east of Oslo? " + "Think hard. " * 40}]
    reply = encoder.encode(ASKS_FOR_WEATHER)
    first = client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER], extra_body=force(reply))
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert (message.content or "").strip() == "I will look."
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("weather", ASKS_FOR_WEATHER.tool_calls[0].arguments)
    ]
    assert first.choices[0].model_extra["token_ids"] == reply

    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain."}
    messages += [message.model_dump(exclude_none=True), answer]
    final = encoder.encode(Turn("It rains."))
    second = client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER], extra_body=force(final))
    known = first.model_extra["prompt_token_ids"] + reply
    assert second.model_extra["prompt_token_ids"][: len(known)] == known
    assert second.choices[0].message.content == "It rains."
    assert second.choices[0].finish_reason == "stop"
    # The reply's last token is never fed back, so its KV was never computed.
    assert second.usage.prompt_tokens_details.cached_tokens == (len(known) - 1) // BLOCK * BLOCK


def converse(client: OpenAI, *, cold: bool = False) -> list[tuple[str, int]]:
    """Three greedy conversations in turn, longer together than the cache: every reply and what it cached.

    A request with a salt of its own hits nothing.
    """
    chats = [[{"role": "user", "content": f"Chat {chat}. " + f"word{chat} " * 350}] for chat in range(3)]
    numbers = itertools.count()
    replies = []
    for _ in range(4):
        for messages in chats:
            answer: ChatCompletion = client.chat.completions.create(
                model="tiny",
                messages=messages,
                temperature=0,
                max_completion_tokens=40,
                extra_body={"ignore_eos": True, **({"cache_salt": f"{next(numbers)}"} if cold else {})},
            )
            text = answer.choices[0].message.content or ""
            details = answer.usage.prompt_tokens_details if answer.usage else None
            replies.append((text, (details and details.cached_tokens) or 0))
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on. " * 20}]
    return replies


def test_outputs_equal_those_of_requests_that_hit_nothing(client: OpenAI, shared_server: SharedServer) -> None:
    warm = converse(client)
    assert shared_server.read_state()["evictions"]["capacity"]["blocks"] > 0
    shared_server.use("vllm")
    cold = converse(client, cold=True)
    shared_server.use("asymcache")
    assert [text for text, _ in warm] == [text for text, _ in cold]
    assert len({text for text, _ in warm}) == len(warm), "replies must depend on the context to prove anything"
    assert sum(cached for _, cached in warm) > 0
    assert sum(cached for _, cached in cold) == 0


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        ([], "non-empty list"),
        ([1, 10**6], "from 0 to"),
        ([1, "x"], "must be an integer"),
    ],
)
def test_bad_forced_replies_are_refused(client: OpenAI, tokens: list[object], complaint: str) -> None:
    with pytest.raises(BadRequestError, match=f"{REPLY_ARGUMENT}: .*{complaint}"):
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "?"}],
            extra_body={"vllm_xargs": {REPLY_ARGUMENT: tokens}},
        )


CHAT = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 1}
OURS = {"vllm_xargs": {ROLES_ARGUMENT: "z"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, **OURS}),
        ("/v1/completions", {"prompt": [10, 11], "max_tokens": 1, **OURS}),
        ("/v1/responses", {"input": "?", "max_output_tokens": 1, **OURS}),
        ("/v1/messages", {**CHAT, **OURS}),
        ("/invocations", {"prompt": [10, 11], "max_tokens": 1, **OURS}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_server_tells_itself_is_refused_at_all_doors(
    client: OpenAI, shared_server: SharedServer, path: str, body: dict[str, object], *, stream: bool
) -> None:
    answer = httpx.post(
        shared_server.url + path, json={"model": "tiny", "stream": stream, **body}, headers=AUTHORIZED, timeout=30
    )
    assert (answer.status_code, ROLES_ARGUMENT in answer.text) == (400, True), answer.text
    assert client.completions.create(model="tiny", prompt=[10, 11], max_tokens=1).choices[0].finish_reason == "length"


def test_a_request_id_like_those_of_fill_requests_is_refused(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match=r"X-Request-Id.*#fill-"):
        client.completions.create(
            model="tiny", prompt=[10, 11], max_tokens=1, extra_headers={"X-Request-Id": "another's#fill-1"}
        )


def test_end_of_turn_inside_a_forced_reply_is_refused(client: OpenAI, encoder: ReplyEncoder) -> None:
    reply = encoder.encode(Turn("One."))
    with pytest.raises(BadRequestError, match="before the end"):
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "?"}], extra_body=force(reply + reply)
        )


def test_a_reply_that_ends_at_a_stop_string_is_no_aborted_turn(client: OpenAI) -> None:
    """vLLM's server sees it and aborts the request in the engine."""

    # Not dictated: such replies do not stop.
    def ask(session: str, stop: list[str]) -> str:
        reply = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Think, act, and wait."}],
            max_tokens=40,
            temperature=0,
            stop=stop,
            extra_body={"session_id": session},
        )
        return reply.choices[0].message.content

    whole = ask("whole", [])
    stop = whole[len(whole) // 2 :][:4]
    assert ask("stopped", [stop]) == whole.partition(stop)[0]
    for _ in range(100):
        (job,) = httpx.get(
            f"{str(client.base_url).removesuffix('v1/')}agentcache/jobs/stopped", headers=AUTHORIZED
        ).json()["jobs"]
        if not job["running"]:
            break
        time.sleep(0.1)
    assert ([turn["status"] for turn in job["turns"]], job["failure_count"]) == (["finished"], 0)


def ask_shortly(client: OpenAI, **body: object) -> None:
    chat = [{"role": "user", "content": "?"}]
    client.chat.completions.create(model="tiny", messages=chat, max_tokens=1, extra_body=body)


def test_a_session_of_several_tenants_is_a_job_of_each(client: OpenAI) -> None:
    for salt in ("a", "b"):
        ask_shortly(client, session_id="shared", cache_salt=salt)
    url = f"{str(client.base_url).removesuffix('v1/')}agentcache/jobs/shared"

    def count(**headers: str) -> int:
        answer = httpx.get(url, headers=AUTHORIZED | headers)
        return len(answer.json()["jobs"]) if answer.status_code == httpx.codes.OK else 0

    assert (count(), count(**{"X-Cache-Salt": "a"}), count(**{"X-Cache-Salt": ""})) == (2, 1, 0)
    # It names tenant b and cannot be read: nobody's job ends.
    final = {"X-Session-ID": "shared", "x-dynamo-session-final": "true"}
    with pytest.raises(BadRequestError):
        client.post("/chat/completions", body={"cache_salt": "b"}, options={"headers": final}, cast_to=object)
    (ended,) = httpx.delete(url, headers=AUTHORIZED | {"X-Cache-Salt": "a"}).json()["ended"]
    assert (ended["cause"], ended["requests"], ended["output_tokens"]) == ("job over", 1, 1)
    assert (count(), count(**{"X-Cache-Salt": "b"})) == (1, 1)
    # Who may see the job may see its record.
    seen = [httpx.get(url, headers=AUTHORIZED | {"X-Cache-Salt": salt}).json().get("ended") for salt in "ab"]
    assert [len(jobs) for jobs in seen] == [1, 0]


def test_a_session_that_is_no_text_is_a_bad_request(client: OpenAI) -> None:
    body = b'{"model": "tiny", "prompt": "?", "max_tokens": 1, "session_id": "\\ud800"}'
    headers = AUTHORIZED | {"Content-Type": "application/json"}
    answer = httpx.post(f"{client.base_url}completions", content=body, headers=headers)
    assert answer.status_code == httpx.codes.BAD_REQUEST
    error = answer.json()["error"]
    # vLLM 0.33 logs a request before anything looks at it, and cannot write this one as JSON.
    assert error["param"] == "session_id" or "surrogates not allowed" in error["message"]
