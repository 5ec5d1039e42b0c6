"""The embedded server in a thread with an event loop of its own, so that tests can use the plain OpenAI client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from openai import OpenAI

from agentcache.server.arguments import build_arguments
from agentcache.server.embedded import EmbeddedServer, run_embedded_server

OPTIONS = (
    *("--block-size", "32"),
    *("--shutdown-timeout", "10"),
    "--enable-prompt-tokens-details",
    "--no-use-tqdm-on-load",
)


@contextmanager
def serve_tiny(*options: str, policy: str = "lru", forced_replies: bool = True) -> Iterator[EmbeddedServer]:
    """Raises what made the server fail, also on the way down."""
    args = build_arguments("tiny", [*OPTIONS, *options], policy=policy, forced_replies=forced_replies)
    ready: list[EmbeddedServer] = []
    failure: list[BaseException] = []
    changed = threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stopped = asyncio.Event()
        stop.append((asyncio.get_running_loop(), stopped))
        async with run_embedded_server(args) as server:
            ready.append(server)
            changed.set()
            await stopped.wait()

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failure.append(error)
        finally:
            changed.set()

    thread = threading.Thread(target=work)
    thread.start()
    changed.wait()
    try:
        if ready:
            yield ready[0]
    finally:
        loop, stopped = stop[0]
        if ready:
            loop.call_soon_threadsafe(stopped.set)
        thread.join()
    if failure:
        raise failure[0]


def connect(server: EmbeddedServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def engine_processes() -> list[psutil.Process]:
    """Living descendants of this process that belong to an engine."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(process.cmdline())
    ]
