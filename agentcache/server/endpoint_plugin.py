"""Entry point in vLLM's group `vllm.endpoint_plugins`: our routes, in every API server process."""

from __future__ import annotations

from argparse import Namespace

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import State
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.serve.middleware import authenticate
from vllm.tasks import SupportedTask

from agentcache.engine.compat import check_server
from agentcache.engine.snapshot import SNAPSHOT_METHOD
from agentcache.errors import CompatibilityError
from agentcache.server.declared_tools import mark_declared_tools
from agentcache.server.job_reader import JobReader
from agentcache.server.live_report import LiveReport
from agentcache.server.routes import PREFIX, MetricsRoute, router
from agentcache.server.session_headers import SessionHeaders, watch_sessions
from agentcache.server.snapshot_reader import SnapshotReader


class AgentCacheEndpoints:
    """vLLM's contract `EndpointPlugin`."""

    name = "agentcache"
    # The server without an engine, which only renders prompts, has nothing to tell.
    required_tasks: tuple[SupportedTask, ...] | None = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        check_server()
        mark_declared_tools()
        watch_sessions()
        if PREFIX not in authenticate.GUARDED_PREFIX:
            # So that vLLM's own middleware asks for the API key as it does for /v1.
            authenticate.GUARDED_PREFIX = (*authenticate.GUARDED_PREFIX, PREFIX)  # type: ignore[assignment]
        app.include_router(router)
        # vLLM adds its own after this, so they lie around ours: nobody without the API key gets to it.
        app.add_middleware(SessionHeaders)
        # vLLM puts it in the place of its own.
        app.add_api_route("/metrics", MetricsRoute(_find_metrics_route(app)).serve, methods=["GET"])

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:  # noqa: ARG002
        if not isinstance(engine_client, AsyncLLMEngine):
            raise CompatibilityError("agentcache's routes need vLLM's AsyncLLM; take agentcache out of VLLM_PLUGINS")
        core = engine_client.engine_core
        state.agentcache_snapshots = SnapshotReader(lambda: core.call_utility_all_async(SNAPSHOT_METHOD))
        state.agentcache_jobs = JobReader(core.call_utility_all_async)
        state.agentcache_report = LiveReport(state.agentcache_jobs)


def _find_metrics_route(app: FastAPI) -> APIRoute:
    for route in app.routes:
        if isinstance(route, APIRoute) and route.path == "/metrics":
            return route
    raise CompatibilityError("vLLM's server has no route /metrics that agentcache could add to")
