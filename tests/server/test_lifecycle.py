"""A server comes up, goes down, and leaves nothing behind; so does the shared one, see `share_server`.

A real router is in front of it when it goes: starting a server for that alone would take half a minute of CPU more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from background_server import ONE_PROCESS, OPTIONS
from router_fleet import Fleet, needs_router, run_fleet
from wheel_install import without_checkout

from agentcache.cli import main
from agentcache.engine.constants import REPLY_ARGUMENT
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import LocalTokenizer
from tool_runtime.agent.job import Turn
from tool_runtime.learning.durations_file import load_durations
from tool_runtime.learning.tool_key import HUMAN

pytestmark = [pytest.mark.engine, needs_router]


def test_serve_takes_a_replay_and_saves_at_sigterm(
    tmp_path: Path, tiny_model_path: str, wheel_bin: Path, port: int
) -> None:
    """In the time that is the default, and while a client is still told its reply. From the wheel, as users have it."""
    encoder = ReplyEncoder(LocalTokenizer(tiny_model_path))
    durations = tmp_path / "durations.json"
    command = [str(wheel_bin / "agentcache"), "serve", "tiny", "--forced-replies"]
    options = ["--agentcache", f"runtime.durations_file={durations}", *OPTIONS, *ONE_PROCESS]
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), *options],
            env=without_checkout(),
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            models = wait_for(f"http://127.0.0.1:{port}/v1/models", process)
            assert [model["id"] for model in models["data"]] == ["tiny"]
            replay_against(f"http://127.0.0.1:{port}/v1", tmp_path / "out")
            state = wait_for(f"http://127.0.0.1:{port}/agentcache/state", process)
            assert [engine["policy"] for engine in state["engines"]] == ["agentcache"]
            group = [other for other in psutil.process_iter() if is_in_group(other, process.pid)]
            assert len(group) > 1, "the engine runs in processes of its own"
            with run_fleet(workers=1, beside=[port]) as fleet:
                end_behind_router(fleet, process, encoder)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    said = [line for line in (tmp_path / "serve.log").read_text().splitlines() if "agentcache: " in line]
    (banner,) = [line for line in said if "policy agentcache" in line or "agentcache/report" in line]
    assert "agentcache: policy agentcache; tool calls read by hermes; " in banner
    assert banner.endswith(f". Live report: http://127.0.0.1:{port}/agentcache/report")
    _, alive = psutil.wait_procs(group, timeout=15)
    assert alive == []
    states, problem = load_durations(durations)
    assert problem is None
    assert {state.key: state.count for state in states}[HUMAN] == 1


def end_behind_router(fleet: Fleet, process: subprocess.Popen[bytes], encoder: ReplyEncoder) -> None:
    """SIGTERM takes no reply away that a client is still told, and its session goes on at the other server."""
    # The router sends one of two new sessions to each server.
    answers = {session: fleet.ask(session, **make_turn(encoder, "Yes.")).json() for session in ("one", "other")}
    (held,) = [session for session, answer in answers.items() if "port" not in answer]
    # By coming the second turn ends the gap behind the first.
    with fleet.stream(held, **make_turn(encoder, "No. " * 20)) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.terminate()
        *_, last, done = [line for line in lines if line]
    assert done == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "stop"
    assert process.wait(timeout=60) == 0
    went_on, before = fleet.ask_until_answered(held)
    assert went_on.json()["port"] in fleet.workers
    assert before <= {500, 503}


def make_turn(encoder: ReplyEncoder, reply: str) -> dict[str, Any]:
    forced = {REPLY_ARGUMENT: encoder.encode(Turn(reply))}
    return {"model": "tiny", "messages": [{"role": "user", "content": "Is it?"}], "vllm_xargs": forced}


def replay_against(url: str, out: Path) -> None:
    options = ["--jobs", "2", "--scale", "0.05", "--tool-latency", "0", "--arrival", "at-once"]
    assert main(["replay", "bfcl", "--base-url", url, "--out", str(out), *options]) == 0
    figures = json.loads((out / "summary.json").read_text())["policies"]["server"]
    assert (figures["jobs"], figures["failed"], figures["diverged_prompts"]) == (2, 0, 0)
    assert 0 < figures["block_hit_rate"] < 1


def wait_for(url: str, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    for _ in range(600):
        assert process.poll() is None, "the server ended by itself"
        try:
            answer: dict[str, Any] = httpx.get(url).raise_for_status().json()
            return answer
        except httpx.HTTPError:
            time.sleep(0.2)
    raise AssertionError(f"nobody answers at {url}")


def is_in_group(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group
    except ProcessLookupError:
        return False
