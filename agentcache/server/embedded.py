"""Runs the server inside this process: engine and HTTP start together and stop together."""

from __future__ import annotations

import asyncio
import socket
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.engine.rpc.policy_switch import USE_POLICY_METHOD
from agentcache.engine.start_cause import hear_cause
from agentcache.engine.vllm.base import VllmConfig
from agentcache.engine.vllm.engine import AsyncLLMEngine, AsyncMPClient
from agentcache.engine.vllm.serving import NoSignalServer, build_app, build_async_engine_client, init_app_state
from agentcache.errors import ServerError, in_one_line
from agentcache.front_end.placing_client import place_requests
from agentcache.server.job_reader import JobReader
from agentcache.server.plugin_choice import choose_plugins
from agentcache.server.snapshot_reader import SnapshotReader

# Running steps end within seconds; making a scheduler for a million blocks takes a few more.
_SWITCH_WAIT_S = 60.0
_RETRY_S = 0.01


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running server. `url` has no /v1; `startup_s` is how long it took to start."""

    url: str
    startup_s: float
    engine: AsyncLLMEngine
    snapshots: SnapshotReader
    jobs: JobReader

    @property
    def vllm_config(self) -> VllmConfig:
        """Return vLLM's configuration of the engine."""
        return self.engine.vllm_config

    async def use_policy(self, config: Mapping[str, Any]) -> None:
        """Continue with an empty cache, as if just started with `config`, the fields of AgentCacheConfig.

        Raises ServerError when a request is unfinished, or when the engine or the policy does not allow it.
        """
        try:
            await asyncio.wait_for(switch_policy(self.engine.engine_core, config), _SWITCH_WAIT_S)
        except Exception as error:
            # vLLM raises a bare Exception for any failure in the engine.
            raise ServerError(in_one_line(error) or f"the engine did not answer for {_SWITCH_WAIT_S:.0f} s") from error
        self.snapshots.forget()
        given: Any = self.vllm_config.additional_config
        self.vllm_config.additional_config = {**given, CONFIG_KEY: dict(config)}
        # What jobs the last policy had is over, and whether they stay at their engines is the policy's choice.
        shares = read_config(self.vllm_config.additional_config).tenants
        self.jobs.follow(place_requests(self.engine.engine_core, self.vllm_config), shares)


async def switch_policy(core: AsyncMPClient, config: Mapping[str, Any]) -> None:
    """Have all engines of a client take the policy, as soon as the steps of finished requests are over."""
    while not all(await core.call_utility_all_async(USE_POLICY_METHOD, dict(config))):
        await asyncio.sleep(_RETRY_S)


@asynccontextmanager
async def run_embedded_server(args: Namespace) -> AsyncIterator[EmbeddedServer]:
    """Start AsyncLLM and vLLM's OpenAI app on a free loopback port; stop both on exit, however it comes.

    `args` are from `build_arguments`. The caller handles signals. Raises ServerError when the server does not start.
    """
    began = time.monotonic()
    choose_plugins()
    # No client can know the port before the app has it, and none of another machine reaches it.
    args = Namespace(**vars(args) | {"host": "127.0.0.1", "port": 0})
    async with AsyncExitStack() as stack:
        try:
            with hear_cause():
                engine = await stack.enter_async_context(build_async_engine_client(args))
        except Exception as error:
            raise ServerError(f"the engine did not start: {in_one_line(error)}") from error
        assert isinstance(engine, AsyncLLMEngine)
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
                startup_s = time.monotonic() - began
                yield EmbeddedServer(url, startup_s, engine, app.state.agentcache_snapshots, app.state.agentcache_jobs)
            finally:
                server.should_exit = True
                await asyncio.shield(serving)


async def _wait_until_started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    while not server.started:
        if serving.done():
            raise ServerError("the embedded HTTP server ended before it was up") from serving.exception()
        await asyncio.sleep(0.01)
