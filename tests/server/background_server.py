"""The embedded server in a thread with an event loop of its own, so that tests can use the plain OpenAI client.

One server is enough for the tests of many files: a start takes half a minute of CPU, another policy none.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import OpenAI

from agentcache.config import AgentCacheConfig
from agentcache.config_reader import CONFIG_KEY
from agentcache.run.folder import divert_output
from agentcache.server.arguments import build_arguments
from agentcache.server.embedded import EmbeddedServer, run_embedded_server

OPTIONS = (
    *("--block-size", "32"),
    "--no-use-tqdm-on-load",
)
# The worker inside the engine's process, as on one GPU: a third process takes ten seconds to start. See conftest.py.
ONE_PROCESS = ("--distributed-executor-backend", "uni")
BLOCK = 32
BLOCKS = 128
KEY = "secret-key"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
# What any of the tests needs. The scheduler and the middleware change nothing for who does not ask them to.
SCHEDULER = "forgetful_scheduler.ForgetfulScheduler"
SHARED_OPTIONS = (
    *ONE_PROCESS,
    *("--scheduler-cls", SCHEDULER),
    *("--num-gpu-blocks-override", str(BLOCKS + 1)),
    *("--max-model-len", str(BLOCKS * BLOCK)),
    *("--middleware", "forced_turns.ForcedTurns"),
    *("--api-key", KEY),
    "--enable-log-requests",
)


@dataclass(frozen=True, slots=True)
class SharedServer:
    """A cache of `BLOCKS` blocks and forced replies; `client` has the key. The engine's processes write `log`."""

    embedded: EmbeddedServer
    client: OpenAI
    log: Path
    _defaults: dict[str, Any]
    _loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return self.embedded.url

    def use(self, policy: str, **knobs: Any) -> None:
        """Go on as a server that just started with `policy` and these fields of AgentCacheConfig."""
        config = AgentCacheConfig.model_validate({**self._defaults, **knobs, "policy": policy})
        self.run(self.embedded.use_policy(config.model_dump()))

    def read_state(self) -> dict[str, Any]:
        """What the engine tells of itself."""
        (engine,) = httpx.get(f"{self.url}/agentcache/state", headers=AUTHORIZED).raise_for_status().json()["engines"]
        return dict(engine)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do it in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class CallerError(Exception):
    """Fails whoever has the server running."""


@contextmanager
def share_server(log: Path) -> Iterator[SharedServer]:
    """Raises what made the server fail, also on the way down, where the error is the caller's own.

    That takes the server down like any other end, and nobody answers any more.
    """
    args = build_arguments("tiny", [*OPTIONS, *SHARED_OPTIONS], policy="lru", forced_replies=True)
    started: Future[tuple[EmbeddedServer, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    # What clients refer to by previous_response_id is kept by vLLM under this alone.
    os.environ["VLLM_ENABLE_RESPONSES_API_STORE"] = "1"

    async def serve() -> None:
        stopped = asyncio.Event()
        async with run_embedded_server(args) as server:
            started.set_result((server, asyncio.get_running_loop(), stopped))
            await stopped.wait()
            raise CallerError

    with ThreadPoolExecutor(1) as thread:
        # The engine's processes keep the outputs that they start with.
        with divert_output(log):
            serving = thread.submit(lambda: asyncio.run(serve()))
            wait((started, serving), return_when=FIRST_COMPLETED)
        if not started.done():
            serving.result()
        server, loop, stopped = started.result()
        try:
            with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
                yield SharedServer(server, client, log, args.additional_config[CONFIG_KEY], loop)
        finally:
            loop.call_soon_threadsafe(stopped.set)
            with pytest.raises(CallerError):
                serving.result()
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{server.url}/health")


def engine_processes() -> set[psutil.Process]:
    """Living descendants of this process that belong to an engine."""
    return {
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(process.cmdline())
    }
