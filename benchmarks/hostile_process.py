"""A server of the tiny model on the CPU, ours or stock vLLM's, with a look at its event loop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from hostile_probe import PATH, LoopProbe

from agentcache.models.catalog import resolve_model

_START_S = 300.0
_ANSWER_S = 600.0
_BLOCK_TOKENS = 32
_CACHE_TOKENS = 131_072
# Requests under way at once, as of a client with a pool of connections.
_AT_ONCE = 64
# Less than uvicorn's 5 s: a request on a connection that the server is closing has no answer, and costs it nothing.
_KEPT_ALIVE_S = 2.0


class Reading(NamedTuple):
    """The longest gap of the event loop since the last reading, and what the processes take."""

    gap_ms: float
    server_mb: float
    core_mb: float


class Server:
    """A running server, as a client sees it. `statuses` has those of all answers."""

    def __init__(self, client: aiohttp.ClientSession, *, is_stock: bool) -> None:
        self.client = client
        self.is_stock = is_stock
        self.statuses: set[int] = set()
        self._seats = asyncio.Semaphore(_AT_ONCE)

    async def ask(
        self,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        *,
        method: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> int:
        """Return the status; 0 where the server closes the connection instead."""
        status = await self._ask(path, body, method, headers)
        self.statuses.add(status)
        return status

    async def _ask(
        self, path: str, body: bytes | dict[str, Any] | None, method: str | None, headers: Iterable[tuple[str, str]]
    ) -> int:
        data = json.dumps({"model": "tiny", **body}).encode() if isinstance(body, dict) else body
        sent = [("Content-Type", "application/json"), *headers]
        async with self._seats:
            try:
                method = method or ("GET" if data is None else "POST")
                async with self.client.request(method, path, data=data, headers=sent) as answer:
                    await answer.read()
                    return answer.status
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
                return 0

    async def read(self) -> Reading:
        async with self.client.get(PATH) as answer:
            return Reading(**await answer.json())


@asynccontextmanager
async def run_server(
    *, is_stock: bool, options: Sequence[str] = (), knobs: dict[str, Any] | None = None
) -> AsyncIterator[Server]:
    """Start a server with these options, ours with these fields of AgentCacheConfig, and end it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = _write_command(is_stock, [*_list_options(port), *options], knobs)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=_make_environment(is_stock), stdout=log, stderr=log)
        try:
            timeout = aiohttp.ClientTimeout(_ANSWER_S)
            url = f"http://127.0.0.1:{port}"
            async with aiohttp.ClientSession(
                url,
                timeout=timeout,
                connector=aiohttp.TCPConnector(keepalive_timeout=_KEPT_ALIVE_S),
                max_line_size=2**24,
                max_field_size=2**24,
            ) as client:
                await _await_start(client, process, log)
                yield Server(client, is_stock=is_stock)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _list_options(port: int) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--block-size", str(_BLOCK_TOKENS), "--num-gpu-blocks-override", str(_CACHE_TOKENS // _BLOCK_TOKENS + 1)),
        *("--distributed-executor-backend", "uni"),
        *("--middleware", f"{LoopProbe.__module__}.{LoopProbe.__name__}"),
        "--disable-uvicorn-access-log",
    ]


def _write_command(is_stock: bool, options: Sequence[str], knobs: dict[str, Any] | None) -> list[str]:
    if is_stock:
        tiny = resolve_model("tiny")
        module = "vllm.entrypoints.openai.api_server"
        return [sys.executable, "-m", module, "--model", tiny.path, *tiny.options, *options]
    extra = json.dumps({"agentcache": {"policy": "agentcache", **(knobs or {})}})
    return [sys.executable, "-m", "agentcache", "serve", "tiny", *options, "--additional-config", extra]


def _make_environment(is_stock: bool) -> dict[str, str]:
    plugins = {"VLLM_PLUGINS": ""} if is_stock else {}
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    cpu = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return {**os.environ, **cpu, **plugins, "PYTHONPATH": path}


async def _await_start(client: aiohttp.ClientSession, process: subprocess.Popen[bytes], log: Any) -> None:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            async with client.get(PATH) as answer:
                await answer.read()
                return
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.2)
    log.seek(0)
    sys.exit(f"the server did not start:\n{log.read().decode(errors='replace')[-4000:]}")
