"""Servers come up, go down, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from background_server import OPTIONS, engine_processes

from agentcache.server.arguments import build_arguments
from agentcache.server.embedded import run_embedded_server


def test_an_exception_inside_takes_engine_and_server_down() -> None:
    args = build_arguments("tiny", OPTIONS, policy="lru")
    urls = []

    async def fail() -> None:
        async with run_embedded_server(args) as server:
            urls.append(server.url)
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"{server.url}/health")).status_code == httpx.codes.OK
            raise LookupError("the caller's own")

    with pytest.raises(LookupError, match="the caller's own"):
        asyncio.run(fail())
    assert engine_processes() == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{urls[0]}/health")


def test_serve_answers_takes_a_replay_and_ends_on_sigint(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "agentcache", "serve", "tiny", "--policy", "lru", "--forced-replies"]
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), *OPTIONS],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            models = wait_for(f"http://127.0.0.1:{port}/v1/models", process)
            assert [model["id"] for model in models["data"]] == ["tiny"]
            replay_against(f"http://127.0.0.1:{port}/v1", tmp_path / "out")
            state = wait_for(f"http://127.0.0.1:{port}/agentcache/state", process)
            assert [engine["policy"] for engine in state["engines"]] == ["lru"]
            group = [other for other in psutil.process_iter() if is_in_group(other, process.pid)]
            assert len(group) > 1, "the engine runs in processes of its own"
            # As a terminal does it: to the whole group.
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=60) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(group, timeout=15)
    assert alive == []


def replay_against(url: str, out: Path) -> None:
    command = [sys.executable, "-m", "agentcache", "replay", "bfcl", "--base-url", url, "--out", str(out)]
    options = ["--jobs", "2", "--scale", "0.05", "--tool-latency", "0", "--arrival", "at-once"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
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
