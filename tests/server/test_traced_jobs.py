"""Spans of a real server: they say of each turn what its recording says, beside those that vLLM sends itself."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from background_server import ONE_PROCESS, OPTIONS
from loaded_once import run_command
from openai import OpenAI
from otlp_receiver import receive_http
from test_two_api_servers import is_up

from agentcache.engine.constants import REPLY_ARGUMENT
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import LocalTokenizer
from tool_runtime.agent.job import ToolCall, Turn
from workloads.recording.reader import read_recording

# On a busy machine it takes minutes.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.usefixtures("forkserver")]

TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "ab"]
TURNS = (Turn("I look.", (ToolCall("a", "{}"), ToolCall("b", "{}"))), Turn("", (ToolCall("a", "{}"),)), Turn("Tea."))
TRACE = "0af7651916cd43dd8448eb211c80319c"


def converse(client: OpenAI, session: str, encoder: ReplyEncoder) -> None:
    chat: list[Any] = [{"role": "user", "content": "What is tea? " * 40}]
    for turn in TURNS:
        reply = client.chat.completions.create(
            model="tiny",
            messages=chat,
            tools=TOOLS,
            extra_headers={"X-Session-ID": session, "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"},
            extra_body={"vllm_xargs": {REPLY_ARGUMENT: encoder.encode(turn)}},
        )
        message = reply.choices[0].message
        chat.append(message.model_dump(exclude_none=True))
        chat += [{"role": "tool", "tool_call_id": call.id, "content": "tea"} for call in message.tool_calls or ()]


def test_spans_say_what_the_recording_says(tmp_path: Path, port: int, tiny_model_path: str) -> None:
    record, jobs, url = tmp_path / "traffic.jsonl", tmp_path / "jobs.jsonl", f"http://127.0.0.1:{port}"
    command = ["serve", "tiny", "--port", str(port), *OPTIONS, *ONE_PROCESS, "--forced-replies"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--job-log", str(jobs)]
    command += ["--record", str(record), "--agentcache", "record.tool_names=true"]
    log = tmp_path / "log"
    # gRPC does not survive that processes are forked, as they are here alone.
    protocol = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    # vLLM gathers its own spans for five seconds, and may lose the last of them at the end.
    protocol["OTEL_BSP_SCHEDULE_DELAY"] = "100"
    with receive_http() as receiver:
        with run_command([*command, "--otlp-traces-endpoint", receiver.url], log, protocol) as process:
            while not is_up(url):
                assert process.is_alive(), log.read_text(errors="replace")
                time.sleep(0.5)
            with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                for session in ("first", "second"):
                    converse(client, session, ReplyEncoder(LocalTokenizer(tiny_model_path)))
            while len(receiver.list_spans("vllm.tracing.otel")) < 2 * len(TURNS):
                assert process.is_alive(), log.read_text(errors="replace")
                time.sleep(0.1)
            assert httpx.delete(f"{url}/agentcache/jobs/first", timeout=30).is_success
            process.terminate()
            process.join(120)
        spans = receiver.list_spans()
        traced = read_recording(receiver.write(tmp_path / "spans.jsonl"))
    recorded = read_recording(record)
    ours, theirs = (
        [(each.input_length, each.output_length, sorted(each.called), each.end) for each in one.requests]
        for one in (traced, recorded)
    )
    assert len(ours) == 2 * len(TURNS)
    assert ours == theirs
    began_ms = recorded.requests[0].timestamp
    for span, line in zip(traced.requests, recorded.requests, strict=True):
        assert span.timestamp == pytest.approx(line.timestamp - began_ms, abs=50)
        assert span.latency_ms == pytest.approx(line.latency_ms, abs=50)
    # vLLM's own spans are there as well, in the client's trace, to which turns are linked.
    assert len(receiver.list_spans("vllm.tracing.otel")) >= 2 * len(TURNS)
    assert len({span["links"][0]["traceId"] for span in spans if span["name"].startswith("chat")}) == 1
    # A job that is not over when the server stops has a root too.
    roots = [span for span in spans if span["name"] == "invoke_agent"]
    lines = [json.loads(line) for line in jobs.read_text().splitlines()]
    assert [root["said"]["gen_ai.conversation.id"] for root in roots] == [line["job"] for line in lines]
    assert [root["said"]["agentcache.cause"] for root in roots] == ["job over", "server stopped"]
    assert "Spans are missing" not in log.read_text(errors="replace")
