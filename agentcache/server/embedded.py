"""The server inside this process: engine and HTTP come up together and go down together."""

from __future__ import annotations

import asyncio
import socket
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import uvicorn
from vllm.config import VllmConfig
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.launcher import NoSignalServer

from agentcache.errors import ServerError, in_one_line
from agentcache.server.plugin_choice import choose_plugins


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A server that is up. `url` has no /v1; `startup_s` is the time from nothing to ready."""

    url: str
    startup_s: float
    vllm_config: VllmConfig


@asynccontextmanager
async def run_embedded_server(args: Namespace) -> AsyncIterator[EmbeddedServer]:
    """Bring up AsyncLLM and vLLM's OpenAI app on a free loopback port; take both down on any way out.

    `args` are those of `build_arguments`. Signals stay the caller's. Raises ServerError when it does not come up.
    """
    began = time.monotonic()
    choose_plugins()
    async with AsyncExitStack() as stack:
        try:
            engine = await stack.enter_async_context(build_async_engine_client(args))
        except Exception as error:
            raise ServerError(f"the engine did not start: {in_one_line(error)}") from error
        tasks = await engine.get_supported_tasks()
        app = build_app(args, tasks, engine.model_config)
        await init_app_state(engine, app.state, args, tasks)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = NoSignalServer(uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=60))
            app.state.server = server
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                await _wait_until_started(server, serving)
                url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                yield EmbeddedServer(url, time.monotonic() - began, engine.vllm_config)
            finally:
                server.should_exit = True
                await asyncio.shield(serving)


async def _wait_until_started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    while not server.started:
        if serving.done():
            raise ServerError("the embedded HTTP server ended before it was up") from serving.exception()
        await asyncio.sleep(0.01)
