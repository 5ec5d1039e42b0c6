"""Our scheduler on vLLM's own server, as `vllm serve --scheduler-cls` starts it: from the wheel, without our routes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from background_server import ONE_PROCESS, OPTIONS
from openai import OpenAI
from told_snapshot import PATH
from wheel_install import without_checkout

from agentcache.engine.constants import FORCED_REPLY_PROCESSOR, REPLY_ARGUMENT, SCHEDULER_CLASS
from agentcache.jobs.recorded_reply import ReplyEncoder
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.models.catalog import resolve_model
from tool_runtime.agent.job import ToolCall, Turn

pytestmark = pytest.mark.engine

# The server's module: the command `vllm` does not start with vLLM's build for CPUs.
COMMAND = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
WORDS_OF_VLLM = ("Using custom scheduler class", "VLLM_PLUGINS is not set")
CALLS = Turn("I will look.", (ToolCall("weather", '{"city": "Oslo"}'),))
ANSWER = Turn("It rains.")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, wheel_site: Path) -> Iterator[str]:
    tiny = resolve_model("tiny")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = (
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024"),
        *("--scheduler-cls", SCHEDULER_CLASS, "--middleware", "told_snapshot.tell_snapshot"),
        # A random model calls no tools by itself.
        *("--logits-processors", FORCED_REPLY_PROCESSOR),
        *("--additional-config", json.dumps({"agentcache": {"forced_replies": True}})),
    )
    environment = without_checkout(wheel_site, Path(__file__).parent)
    environment.pop("VLLM_PLUGINS", None)
    log_path = tmp_path_factory.mktemp("server") / "log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, "--model", tiny.path, *tiny.options, *OPTIONS, *ONE_PROCESS, *options],
            env=environment,
            cwd=log_path.parent,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_up(url, process, log_path)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=60)
    said = [line for line in log_path.read_text().splitlines() if "agentcache" in line]
    assert any("agentcache: policy agentcache; tool calls read by hermes; costs " in line for line in said)
    # Nothing is missing, so nobody is told to set anything, but for what vLLM says of any scheduler and plug-in.
    ours = [line for line in said if "WARNING" in line and not any(words in line for words in WORDS_OF_VLLM)]
    assert ours == []


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/health").raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(log.read_text()[-4000:])


def read_runtime(url: str) -> dict[str, Any]:
    (engine,) = httpx.get(f"{url}{PATH}").raise_for_status().json()
    assert engine["policy"] == "agentcache"
    return dict(engine["runtime"])


def test_a_tool_that_a_reply_calls_is_pinned_and_learnt(url: str, tiny_model_path: str) -> None:
    encoder = ReplyEncoder(LocalTokenizer(tiny_model_path))
    chat: list[Any] = [{"role": "user", "content": "What is the weather in Oslo? " * 9}]
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        def ask(reply: Turn) -> Any:
            answer = client.chat.completions.create(
                model="tiny",
                messages=chat,
                tools=[{"type": "function", "function": WEATHER}],  # type: ignore[typeddict-item]
                extra_body={"vllm_xargs": {REPLY_ARGUMENT: encoder.encode(reply)}, "session_id": "oslo"},
            )
            return answer.choices[0].message

        message = ask(CALLS)
        (call,) = message.tool_calls
        assert call.function.name == "weather"
        away = read_runtime(url)["pins"]
        assert (away["live"], away["began"]) == (1, 1)
        chat += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
        assert ask(ANSWER).content == ANSWER.content
    runtime = read_runtime(url)
    assert {tool: counts["gaps"] for tool, counts in runtime["tools"].items()} == {"weather": 1}
    assert runtime["pins"]["ended"] == {"returned": 1}
