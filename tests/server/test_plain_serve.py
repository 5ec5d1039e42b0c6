"""Our scheduler on vLLM's own server, as `vllm serve --scheduler-cls` starts it: from the wheel, without our routes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from background_server import ONE_PROCESS, OPTIONS
from import_door import PATH as IMPORT_ALL
from openai import OpenAI
from policy_door import PATH as SWITCH
from told_snapshot import PATH
from wheel_install import PACKAGES, without_checkout

from agentcache.engine.constants import FORCED_REPLY_PROCESSOR, REPLY_ARGUMENT, SCHEDULER_CLASS
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.models.catalog import resolve_model
from tool_runtime.agent.job import ToolCall, Turn
from workloads.recording.reader import read_recording

pytestmark = pytest.mark.engine

# The server's module: the command `vllm` does not start with vLLM's build for CPUs.
SERVER = "vllm.entrypoints.openai.api_server"
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
WORDS_OF_VLLM = ("VLLM_PLUGINS is not set",)
# Relative to where the server was started.
RECORDING = "traffic.jsonl"
START = {"policy": "vllm", "record": {"file": RECORDING}, "forced_replies": True}
NEXT = {"policy": "agentcache", "record": {}}
CALLS = Turn("I will look.", (ToolCall("weather", '{"city": "Oslo"}'),))
ANSWER = Turn("It rains.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def url(folder: Path, wheel_bin: Path, port: int) -> Iterator[str]:
    tiny = resolve_model("tiny")
    options = (
        *("--model", tiny.path, *tiny.options, *OPTIONS, *ONE_PROCESS),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024"),
        *("--scheduler-cls", SCHEDULER_CLASS, "--additional-config", json.dumps({"agentcache": START})),
        *("--middleware", "told_snapshot.tell_snapshot", "--middleware", "policy_door.take_policy"),
        *("--middleware", "import_door.import_all"),
        # A random model calls no tools by itself.
        *("--logits-processors", FORCED_REPLY_PROCESSOR),
    )
    environment = without_checkout(Path(__file__).parent)
    environment.pop("VLLM_PLUGINS", None)
    log_path = folder / "log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [str(wheel_bin / "python"), "-m", SERVER, *options],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_up(url, process, log_path)
            yield url
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=60)
    said = [line for line in log_path.read_text().splitlines() if "agentcache" in line]
    banners = [line for line in said if "agentcache: policy agentcache; tool calls read by hermes; costs " in line]
    assert banners
    assert not [line for line in banners if "Live report" in line], "it has no routes of ours"
    # Nothing is missing, so nobody is told to set anything, but for what vLLM says of any plug-in.
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


@dataclass(frozen=True)
class Agent:
    client: OpenAI
    encoder: ReplyEncoder
    chat: list[Any]

    def ask(self, reply: Turn) -> Any:
        """Get this reply, and note it."""
        answer = self.client.chat.completions.create(
            model="tiny",
            messages=self.chat,
            tools=[{"type": "function", "function": WEATHER}],  # type: ignore[typeddict-item]
            extra_body={"vllm_xargs": {REPLY_ARGUMENT: self.encoder.encode(reply)}, "session_id": "oslo"},
        )
        message = answer.choices[0].message
        self.chat.append(message.model_dump(exclude_none=True))
        return message

    def tell(self, call: Any, result: str) -> None:
        self.chat.append({"role": "tool", "tool_call_id": call.id, "content": result})


@pytest.fixture
def agent(url: str, tiny_model_path: str) -> Iterator[Agent]:
    chat = [{"role": "user", "content": "What is the weather in Oslo? " * 9}]
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield Agent(client, ReplyEncoder(LocalTokenizer(tiny_model_path)), chat)


def test_vllms_own_policy_records(url: str, agent: Agent, folder: Path) -> None:
    (call,) = agent.ask(CALLS).tool_calls
    agent.tell(call, "Rain.")
    agent.ask(ANSWER)
    # The recording is complete when its scheduler is gone.
    httpx.post(f"{url}{SWITCH}", json=NEXT, timeout=60.0).raise_for_status()
    recording = read_recording(folder / RECORDING)
    assert (recording.header.policy, recording.broken) == ("vllm", ())
    first, second = recording.requests
    assert (first.end, len(first.called), second.end, second.called) == ("calls", 1, "answer", [])
    assert first.session == second.session is not None
    assert 0 < first.cached_length + second.cached_length < second.input_length
    assert first.latency_ms < second.timestamp - first.timestamp
    text = (folder / RECORDING).read_text()
    assert not [word for word in ("Oslo", "oslo", "weather", "Rain") if word in text]


def test_a_tool_that_a_reply_calls_is_pinned_and_learnt(url: str, agent: Agent) -> None:
    httpx.post(f"{url}{SWITCH}", json=NEXT, timeout=60.0).raise_for_status()
    (call,) = agent.ask(CALLS).tool_calls
    assert call.function.name == "weather"
    away = read_runtime(url)["pins"]
    assert (away["live"], away["began"]) == (1, 1)
    agent.tell(call, "Rain.")
    assert agent.ask(ANSWER).content == ANSWER.content
    runtime = read_runtime(url)
    assert {tool: counts["gaps"] for tool, counts in runtime["tools"].items()} == {"weather": 1}
    assert runtime["pins"]["ended"] == {"returned": 1}


def test_every_module_of_the_wheel_can_be_imported(url: str, wheel_bin: Path) -> None:
    """By a Python that has loaded vLLM: to start another for it would take ten seconds."""
    files = httpx.post(f"{url}{IMPORT_ALL}", json=PACKAGES, timeout=60).raise_for_status().json()
    assert files.keys() > {"agentcache._evictor", "agentcache.cli.command", "workloads.bfcl.web_search"}
    assert all(Path(file).is_relative_to(wheel_bin.parent) for file in files.values())
