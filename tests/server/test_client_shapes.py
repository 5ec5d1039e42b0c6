"""Requests with all that Claude Code 2.1 and Codex (0.12x to 0.171) send: what changes each turn changes no job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest
from background_server import AUTHORIZED, SharedServer
from client_doors import ANSWER, Body

from agentcache.engine.constants import REPLY_ARGUMENT
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import LocalTokenizer
from tool_runtime.agent.job import ToolCall, Turn

pytestmark = pytest.mark.engine

EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
SCHEMA = {"$schema": "https://json-schema.org/draft/2020-12/schema", "additionalProperties": False, **COMMAND}
BASH = Turn("I will look.", (ToolCall("Bash", '{"command": "ls"}'),))
SHELL = Turn("I will look.", (ToolCall("exec_command", '{"command": "ls"}'),))


class Client:
    """Sends one session's requests, and has their replies dictated."""

    def __init__(self, server: SharedServer, model: str, path: str, headers: Mapping[str, str]) -> None:
        self._server = server
        self._encoder = ReplyEncoder(LocalTokenizer(model))
        self._path = path
        self._headers = {**AUTHORIZED, **headers}

    def send(self, body: Body, reply: Turn, **headers: str) -> None:
        forced = {"model": "tiny", "stream": True, "vllm_xargs": {REPLY_ARGUMENT: self._encoder.encode(reply)}}
        url = f"{self._server.url}{self._path}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        httpx.post(url, json={**body, **forced}, headers={**self._headers, **named}, timeout=60).raise_for_status()

    def find_job(self, session: str) -> Body:
        answer = httpx.get(f"{self._server.url}/agentcache/jobs/{session}", headers=AUTHORIZED).raise_for_status()
        (job,) = answer.json()["jobs"]
        return dict(job)


def write_claude(session: str, system: str, messages: list[Body]) -> Body:
    """The first line of the system message is another one in each request; it bills, and the model does not see it."""
    billing = (
        f"x-anthropic-billing-header: cc_version=2.1.86.{uuid4().hex[:3]}; cc_entrypoint=cli; cch={uuid4().hex[:5]};"
    )
    user = {"device_id": "0" * 64, "account_uuid": "", "session_id": session}
    texts = [{"type": "text", "text": billing}, {"type": "text", "text": system, **EPHEMERAL}]
    return {
        **{
            "system": texts,
            "messages": messages,
            "max_tokens": 1000,
            "temperature": 1,
            "thinking": {"type": "adaptive"},
        },
        "tools": [{"name": "Bash", "description": "Run a command.", "input_schema": SCHEMA}],
        "metadata": {"user_id": json.dumps(user)},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
    }


def test_claude_code_and_its_sub_agents_are_one_job(shared_server: SharedServer, tiny_model_path: str) -> None:
    shared_server.use("agentcache")
    session, system = str(uuid4()), "You are Claude Code, and use your tools to help the user. " * 8
    headers = {
        **{"x-claude-code-session-id": session, "x-app": "cli", "anthropic-version": "2023-06-01"},
        **{"anthropic-beta": "claude-code-20250219", "user-agent": "claude-cli/2.1.86 (external, cli)"},
    }
    client = Client(shared_server, tiny_model_path, "/v1/messages?beta=true", headers)
    reminder = {"type": "text", "text": "<system-reminder>Today is Monday.</system-reminder>"}
    question = {"type": "text", "text": f"Which files are there? {session}"}
    client.send(
        write_claude(session, system, [{"role": "user", "content": [reminder, {**question, **EPHEMERAL}]}]), BASH
    )
    # Two of a kind; the second begins while the first one's tool runs. The third has the main agent's own words.
    for task in ("Find out where errors are made. ", "Find out where they are told. "):
        explore = [{"role": "user", "content": [{"type": "text", "text": task}]}]
        client.send(write_claude(session, "You explore a folder and report of it. " * 16, explore), BASH)
    asked = {"role": "user", "content": [reminder, question]}
    client.send(write_claude(session, system, [asked]), BASH, x_claude_code_agent_id="a-1")
    # The cache's marks have moved to the end, as they do with each request.
    call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}
    thought = {"type": "thinking", "thinking": "Let me see.", "signature": "signed"}
    reply = {"role": "assistant", "content": [thought, {"type": "text", "text": "I will look."}, call]}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a b", "is_error": False, **EPHEMERAL}
    client.send(write_claude(session, system, [asked, reply, {"role": "user", "content": [result]}]), ANSWER)
    job = client.find_job(session)
    check_turns(job, ["Bash"], ["Bash"], ["Bash"], ["Bash"], [])
    assert job["waits_for"] == ["Bash"] * 3


def write_codex(session: str, inputs: list[Body]) -> Body:
    function = {"type": "function", "name": "exec_command", "strict": False, "parameters": COMMAND}
    search = {"type": "web_search", "external_web_access": False}
    agents = {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents.", "tools": [function]}
    return {
        "instructions": "You are Codex, and run commands in the user's folder. " * 8,
        "input": inputs,
        "tools": [function, {"type": "custom", "name": "apply_patch", "description": "Patch files."}, agents, search],
        **{"tool_choice": "auto", "parallel_tool_calls": False, "store": False, "prompt_cache_key": session},
        **{"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "medium", "summary": "auto"}},
        "text": {"verbosity": "medium"},
    }


def test_codex_is_one_job(shared_server: SharedServer, tiny_model_path: str) -> None:
    shared_server.use("agentcache")
    session = str(uuid4())
    headers = {"session-id": session, "originator": "codex_cli_rs", "openai-beta": "responses=experimental"}
    client = Client(shared_server, tiny_model_path, "/v1/responses", headers)
    inputs: list[Any] = [
        {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
        for role, text in (("developer", "<permissions>all</permissions>"), ("user", f"Which files? {session}"))
    ]
    client.send(write_codex(session, inputs), SHELL)
    thought = {"type": "reasoning_text", "text": "Let me see."}
    inputs += [
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [thought], "encrypted_content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I will look."}]},
        {"type": "function_call", "name": "exec_command", "arguments": '{"command":"ls"}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a b"},
    ]
    client.send(write_codex(session, inputs), ANSWER)
    check_turns(client.find_job(session), ["exec_command"], [])


def check_turns(job: Body, *tools: list[str]) -> None:
    """The last turn goes on from the first, which was kept for it."""
    assert [turn["tools"] for turn in job["turns"]] == list(tools)
    assert {turn["status"] for turn in job["turns"]} == {"finished"}
    first, last = job["turns"][0], job["turns"][-1]
    assert last["cached_tokens"] > first["prompt_tokens"] - 32
    assert (last["misses"].keys(), last["change"]) == ({"new"}, None)
    assert (job["pins"][0]["turn"], job["pins"][0]["cause"]) == (0, "returned")
