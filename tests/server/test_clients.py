"""The clients of docs/clients.md, with requests of their real shape, at every door of the real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest
from background_server import AUTHORIZED, KEY, SharedServer
from client_doors import ANSWER, CALLS, LONG, Body, Chat, Door, Messages, Responses
from forced_turns import dictate
from openai import AsyncOpenAI

from agentcache.cli import main
from agentcache.engine.constants import REPLY_ARGUMENT
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.server import snapshot_reader
from tool_runtime.agent.job import Turn

pytestmark = pytest.mark.engine


class Server:
    def __init__(self, shared: SharedServer, encoder: ReplyEncoder) -> None:
        self.url = shared.url
        self.encoder = encoder
        self.shared = shared

    def post(
        self, door: Door, body: Body, reply: Turn, *, headers: Mapping[str, str] | None = None, stream: bool = False
    ) -> httpx.Response:
        forced = {"model": "tiny", "stream": stream, "vllm_xargs": {REPLY_ARGUMENT: self.encoder.encode(reply)}}
        answer = httpx.post(
            f"{self.url}{door.path}", json={**body, **forced}, headers={**AUTHORIZED, **(headers or {})}, timeout=60
        )
        return answer.raise_for_status()

    def find_jobs(self, session: str) -> list[Body]:
        answer = httpx.get(f"{self.url}/agentcache/jobs/{session}", headers=AUTHORIZED, timeout=30)
        return [] if answer.status_code == httpx.codes.NOT_FOUND else list(answer.raise_for_status().json()["jobs"])

    def count(self) -> Body:
        return dict(self.shared.read_state()["runtime"])


@pytest.fixture(scope="module")
def server(shared_server: SharedServer, tiny_model_path: str) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        # Every read is a fresh one.
        patch.setattr(snapshot_reader, "MIN_INTERVAL_S", 0.0)
        shared_server.use("agentcache")
        yield Server(shared_server, ReplyEncoder(LocalTokenizer(tiny_model_path)))


def check_two_turns(job: Body) -> None:
    """A call, then the answer: the first turn's blocks were kept for the second."""
    assert [(turn["tools"], turn["status"]) for turn in job["turns"]] == [(["weather"], "finished"), ([], "finished")]
    assert job["turns"][1]["cached_tokens"] > 0
    assert (job["pins"][0]["turn"], job["pins"][0]["cause"]) == (0, "returned")
    assert (job["waits_for"], job["running"]) == ([], 0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("door", [Chat(), Responses(), Messages()], ids=["chat", "responses", "messages"])
def test_every_door_counts_alike(server: Server, door: Door, stream: bool) -> None:
    session = str(uuid4())
    headers = {"X-Session-ID": session}
    server.post(door, door.first(session), CALLS, headers=headers, stream=stream)
    (job,) = server.find_jobs(session)
    assert (job["waits_for"], job["pins"][0]["cause"]) == (["weather"], None)
    server.post(door, door.second(session, "I will look."), ANSWER, headers=headers, stream=stream)
    (job,) = server.find_jobs(session)
    check_two_turns(job)
    final = {**headers, "x-dynamo-session-final": "true"}
    server.post(door, door.second(session, "I will look."), ANSWER, headers=final, stream=stream)
    assert server.shared.read_state()["runtime"]["jobs_ended"].get("job over", 0) > 0


@pytest.mark.parametrize("door", [Chat(), Responses(), Messages()], ids=["chat", "responses", "messages"])
def test_a_nameless_job_survives_a_reply_that_comes_back_changed(server: Server, door: Door) -> None:
    before = server.count()
    question = f"What is the weather, {uuid4()}?"
    server.post(door, door.first(question), Turn("Let me think. " * 20, CALLS.tool_calls))
    server.post(door, door.second(question, ""), ANSWER)
    after = server.count()
    assert after["jobs"] == before["jobs"] + 1
    assert after["found_jobs"]["repeated"] == before["found_jobs"].get("repeated", 0) + 1
    assert after["changed_prompts"]["reply not repeated"] == before["changed_prompts"].get("reply not repeated", 0) + 1


@pytest.mark.parametrize("door", [Chat(), Responses(), Messages()], ids=["chat", "responses", "messages"])
def test_a_history_that_went_for_its_summary_is_left(server: Server, door: Door) -> None:
    session, before = str(uuid4()), server.count()
    headers = {"X-Session-ID": session}
    server.post(door, door.first(session), CALLS, headers=headers)
    summary = "It was asked for the weather in Oslo, which is rain, and for nothing else. " * 3
    server.post(door, door.second(session, "I will look."), Turn(summary), headers=headers)
    server.post(door, door.first(f"This is what has happened: {summary}Go on."), CALLS, headers=headers)
    (job,) = server.find_jobs(session)
    change, after = job["turns"][2]["change"], server.count()
    assert (change["cause"], job["waits_for"]) == ("history summarised", ["weather"])
    assert change["left_tokens"] > 0
    counted = after["left_tokens"]["history summarised"] - before["left_tokens"].get("history summarised", 0)
    assert counted == change["left_tokens"]
    assert {pin["cause"] for pin in job["pins"] if pin["turn"] < 2} == {"returned"}
    answer = httpx.delete(f"{server.url}/agentcache/jobs/{session}", headers=AUTHORIZED, timeout=30)
    (ended,) = answer.json()["ended"]
    assert ended["left_tokens"] == {"history summarised": change["left_tokens"]}


def user_id_text(session: str) -> Body:
    return {"metadata": {"user_id": f"user_{'0' * 64}_account__session_{session}"}}


def user_id_json(session: str) -> Body:
    ids = {"device_id": "0" * 64, "account_uuid": "", "session_id": session}
    return {"metadata": {"user_id": json.dumps(ids)}}


@pytest.mark.parametrize(
    ("door", "header", "make", "stream"),
    [
        (Messages(), "x-claude-code-session-id", user_id_json, True),
        (Messages(), None, user_id_json, True),
        (Messages(), None, user_id_text, True),
        (Messages(), None, lambda session: {"session_id": session}, False),
        (Responses(), "session-id", lambda _: {"prompt_cache_key": str(uuid4())}, True),
        (Responses(), "session_id", lambda session: {"prompt_cache_key": session}, True),
        (Responses(), None, lambda session: {"prompt_cache_key": session}, True),
        (Chat(), None, lambda session: {"prompt_cache_key": session}, False),
        (Chat(), "x-session-affinity", lambda _: {}, True),
        (Chat(), None, lambda session: {"session_id": session}, False),
        (Responses(), None, lambda session: {"session_id": session}, False),
    ],
    ids=[
        *("claude code", "claude code before, json", "claude code before, text", "anthropic body"),
        *("codex", "codex before", "codex key", "chat key", "opencode", "chat body", "responses body"),
    ],
)
def test_a_client_s_own_name_is_read(server: Server, door: Door, header: str | None, make: Any, stream: bool) -> None:
    session = str(uuid4())
    headers = {header: session} if header else None
    for body, reply in ((door.first(session), CALLS), (door.second(session, "I will look."), ANSWER)):
        server.post(door, {**body, **make(session)}, reply, headers=headers, stream=stream)
    (job,) = server.find_jobs(session)
    check_two_turns(job)


def test_a_cache_key_that_many_share_names_no_session(server: Server) -> None:
    before = server.count()["jobs"]
    for number in range(2):
        server.post(Chat(), {**Chat().first(f"{number} {uuid4()}"), "prompt_cache_key": "my-agent"}, ANSWER)
    assert server.count()["jobs"] == before + 2
    assert server.find_jobs("my-agent") == []


def test_hostile_names_are_bounded_and_never_logged(server: Server) -> None:
    marker = uuid4().hex
    control = f"{marker}\n\x1b[31m\r{marker}"
    server.post(Chat(), {**Chat().first("?"), "session_id": control}, ANSWER)
    server.post(Messages(), {**Messages().first("?"), "session_id": control}, ANSWER)
    server.post(Chat(), {**Chat().first("?"), "session_id": marker * 300_000}, ANSWER)
    server.post(Messages(), {**Messages().first("?"), "session_id": marker * 300_000}, ANSWER)
    server.post(Chat(), Chat().first("?"), ANSWER, headers={"x-session-affinity": marker * 2000})
    twice = [*AUTHORIZED.items(), ("X-Session-ID", f"{marker}-1"), ("x-session-id", f"{marker}-2")]
    forced = {"model": "tiny", "vllm_xargs": {REPLY_ARGUMENT: server.encoder.encode(ANSWER)}}
    httpx.post(f"{server.url}{Chat.path}", json={**Chat().first("?"), **forced}, headers=twice).raise_for_status()
    assert (len(server.find_jobs(f"{marker}-1")), server.find_jobs(f"{marker}-2")) == (1, [])
    listed = httpx.get(f"{server.url}/agentcache/jobs", headers=AUTHORIZED).raise_for_status().json()["jobs"]
    assert max(len(job["session"]) for job in listed) <= 100
    for bad in (7, ["x"], "\ud800"):
        body = json.dumps({**Messages().first("?"), "model": "tiny", "session_id": bad})
        headers = {**AUTHORIZED, "Content-Type": "application/json"}
        answer = httpx.post(f"{server.url}{Messages.path}", content=body, headers=headers)
        assert answer.status_code == httpx.codes.BAD_REQUEST
        assert "session_id" in answer.text
    log = server.shared.log.read_text(encoding="utf-8", errors="replace")
    assert [line for line in log.splitlines() if marker in line and "/agentcache/jobs/" not in line] == []


def test_the_anthropic_client_s_chat_is_one_job(server: Server) -> None:
    # A second and a half, which no other test needs.
    from anthropic import Anthropic

    session = str(uuid4())
    xargs = {"vllm_xargs": {REPLY_ARGUMENT: server.encoder.encode(CALLS)}, "session_id": session}
    with Anthropic(base_url=server.url, auth_token=KEY, api_key=None, max_retries=0) as client:
        first: Any = Messages().first(session)
        reply = client.messages.create(model="tiny", extra_body=xargs, **first)
        (call,) = [block for block in reply.content if block.type == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        echo = [block.model_dump(exclude_none=True) for block in reply.content]
        first["messages"] += [{"role": "assistant", "content": echo}, {"role": "user", "content": [result]}]
        xargs["vllm_xargs"] = {REPLY_ARGUMENT: server.encoder.encode(ANSWER)}
        with client.messages.stream(model="tiny", extra_body=xargs, **first) as stream:
            assert stream.get_final_text() == "It rains in Oslo."
    check_two_turns(server.find_jobs(session)[0])


def test_a_response_goes_on_from_the_one_that_it_names(server: Server) -> None:
    before, counted = list_sessions(server), server.count()["found_jobs"].get("response", 0)
    door, client = Responses(), server.shared.client

    def ask(reply: Turn, **body: Any) -> Any:
        forced = {"vllm_xargs": {REPLY_ARGUMENT: server.encoder.encode(reply)}}
        body = {**door.first("What is the weather in Moss?"), "store": True, **body}
        return client.responses.create(model="tiny", extra_body=forced, **body)

    first = ask(CALLS)
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    assert ask(ANSWER, input=[result], previous_response_id=first.id).output_text == "It rains in Oslo."
    job = find_new_job(server, before)
    assert [turn["tools"] for turn in job["turns"]] == [["weather"], []]
    assert server.count()["found_jobs"]["response"] == counted + 1


def test_the_doctor_names_what_a_client_does(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.shared.use("agentcache")
    session = f"doctored-{uuid4()}"
    for minute in range(3):
        body = Chat().second(session, "I will look.")
        body["messages"][0] = {"role": "system", "content": f"It is {minute} past twelve. {LONG}"}
        server.post(Chat(), {**body, "session_id": session}, ANSWER)
    assert main(["doctor", server.url, "--api-key", KEY]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 of 3 prompts left the last turn of their job: system message changed; for example at token 0" in printed
    assert "put a date" in printed
    change = server.find_jobs(session)[0]["turns"][1]["change"]
    assert (change["cause"], change["role"]) == ("system message changed", "system")


def find_new_job(server: Server, before: set[str]) -> Body:
    (session,) = list_sessions(server) - before
    (job,) = server.find_jobs(session)
    return job


def list_sessions(server: Server) -> set[str]:
    answer = httpx.get(f"{server.url}/agentcache/jobs?limit=500", headers=AUTHORIZED).raise_for_status()
    return {job["session"] for job in answer.json()["jobs"]}


def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


def test_the_agents_sdk_is_one_job_without_a_name(server: Server) -> None:
    # Not above: each worker of the tests would load it, for seconds.
    from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, function_tool

    before = list_sessions(server)

    async def run() -> str:
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
        model = OpenAIResponsesModel("tiny", client)
        agent = Agent(name="agent", instructions=LONG, model=model, tools=[function_tool(weather)])
        config = RunConfig(model_settings=ModelSettings(store=False), tracing_disabled=True)
        result = await Runner.run(agent, "What is the weather in Oslo?", run_config=config)
        return str(result.final_output)

    with dictate([server.encoder.encode(CALLS), server.encoder.encode(ANSWER)]):
        assert asyncio.run(run()) == "It rains in Oslo."
    check_two_turns(find_new_job(server, before))


def test_pydantic_ai_is_one_job_without_a_name(server: Server) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    before = list_sessions(server)

    async def run() -> str:
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
        model = OpenAIChatModel("tiny", provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, system_prompt=LONG, tools=[weather])
        return (await agent.run("What is the weather in Bergen or in Oslo?")).output

    with dictate([server.encoder.encode(CALLS), server.encoder.encode(ANSWER)]):
        assert asyncio.run(run()) == "It rains in Oslo."
    check_two_turns(find_new_job(server, before))


@pytest.mark.parametrize(
    ("door", "names"),
    [
        (Chat(), lambda root, child: {"X-Session-ID": child, "x-parent-session-id": root}),
        (Responses(), lambda root, child: {"session-id": root, "thread-id": child, "x-codex-parent-thread-id": root}),
        (Messages(), lambda root, child: {"x-claude-code-session-id": root, "x-claude-code-agent-id": child}),
        (Chat(), lambda root, child: {"x-dynamo-session-id": child, "x-dynamo-parent-session-id": root}),
    ],
    ids=["opencode", "codex", "claude code", "dynamo"],
)
def test_a_sub_agent_is_a_part_of_its_family_s_job(server: Server, door: Door, names: Any) -> None:
    root, child = str(uuid4()), str(uuid4())
    main = {name: root for name in names(root, child) if "parent" not in name and "agent" not in name}
    server.post(door, door.first(root), CALLS, headers=main)
    server.post(door, door.first(child), ANSWER, headers=names(root, child))
    (job,) = server.find_jobs(root)
    assert [turn["thread"] for turn in job["turns"]] == [None, child]
    assert [(agent["name"], agent["parent"], agent["state"]) for agent in job["agents"]] == [(child, None, "waiting")]
    server.post(door, door.second(root, "I will look."), ANSWER, headers=main)
    (job,) = server.find_jobs(child)
    assert (job["session"], job["agents"][0]["state"], job["waits_for"]) == (root, "over", [])


def test_the_routers_contract_is_read_at_every_door(server: Server) -> None:
    root = str(uuid4())
    for number, door in enumerate((Chat(), Responses(), Messages())):
        context = {
            "program_id": f"{root}:{number}",
            "expected_resume": True,
            "kv_retention_ttl_seconds": 5,
            "priority": 3,
        }
        context |= {"parent_program_id": f"{root}:{number - 1}"} if number else {}
        forced = {REPLY_ARGUMENT: server.encoder.encode(ANSWER)}
        for told, status in ((context, 200), (json.dumps(context), 200), ({**context, "deadline": -1}, 400)):
            body = {**door.first(f"{number}"), "model": "tiny", "vllm_xargs": {**forced, "agentic_context": told}}
            answer = httpx.post(f"{server.url}{door.path}", json=body, headers=AUTHORIZED, timeout=60)
            assert answer.status_code == status, answer.text
        assert "agentic_context.deadline" in answer.text
    (job,) = server.find_jobs(f"{root}:0")
    assert [(agent["name"][-2:], (agent["parent"] or "")[-2:]) for agent in job["agents"]] == [(":1", ""), (":2", ":1")]
    assert len([pin for pin in job["pins"] if pin["ended_s"] is None]) > 0
