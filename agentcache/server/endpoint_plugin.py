"""Entry point in vLLM's group `vllm.endpoint_plugins`: our routes, in every API server process."""

from __future__ import annotations

import asyncio
import pkgutil
from argparse import Namespace
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import State

from agentcache.config_reader import read_config
from agentcache.engine.replies.parser_log import shorten_parser_errors
from agentcache.engine.rpc.snapshot import SNAPSHOT_METHOD
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.base import VllmConfig, init_logger
from agentcache.engine.vllm.compat import check_vllm
from agentcache.engine.vllm.engine import AsyncLLMEngine, EngineClient
from agentcache.engine.vllm.serving import SupportedTask, validate_json_request
from agentcache.errors import CompatibilityError
from agentcache.front_end.placing_client import place_requests, shares_engines
from agentcache.front_end.request_marks import mark_requests
from agentcache.front_end.sent_digests import note_excluded_tools
from agentcache.server.access import describe_open_text, guard_routes
from agentcache.server.draining import drain_before_shutdown
from agentcache.server.job_reader import JobReader, watch_expiry
from agentcache.server.live_page import page_router
from agentcache.server.live_report import LiveReport
from agentcache.server.routes import MetricsRoute, router
from agentcache.server.session_headers import SessionHeaders, read_body
from agentcache.server.session_router import SessionRouter
from agentcache.server.snapshot_reader import SnapshotReader

logger = init_logger("vllm.agentcache")


class AgentCacheEndpoints:
    """Implements vLLM's `EndpointPlugin`."""

    name = "agentcache"
    # A server without an engine, which only renders prompts, has nothing to report.
    required_tasks: tuple[SupportedTask, ...] | None = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add our routes and middleware to vLLM's server. Raises CompatibilityError if they do not fit."""
        check_vllm()
        mark_requests()
        app.dependency_overrides[validate_json_request] = read_body
        app.include_router(router)
        app.include_router(page_router)
        # What is added later wraps it, and vLLM's middleware is: requests without the API key never get here.
        app.add_middleware(SessionHeaders)
        guard_routes(app, app.state.args)
        # vLLM puts this route in place of its own.
        app.add_api_route("/metrics", MetricsRoute(_find_metrics_route(app)).serve, methods=["GET"])

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        """Give the routes what asks the engines. Raises CompatibilityError for another engine client than vLLM's."""
        if not isinstance(engine_client, AsyncLLMEngine):
            raise CompatibilityError("agentcache's routes need vLLM's AsyncLLM; take agentcache out of VLLM_PLUGINS")
        note_excluded_tools(args)
        core = engine_client.engine_core
        is_ours = _is_ours(engine_client.vllm_config.scheduler_config.scheduler_cls)

        async def ask() -> list[dict[str, Any] | None]:
            # The engine core of another scheduler has no such method.
            return await core.call_utility_all_async(SNAPSHOT_METHOD) if is_ours else [None]

        placer = place_requests(core, engine_client.vllm_config) if is_ours else None
        state.agentcache_snapshots = SnapshotReader(ask)
        told = _find_router(engine_client.vllm_config)
        tokenizer = engine_client.tokenizer
        decode = None if tokenizer is None else tokenizer.decode
        config = read_config(engine_client.vllm_config.additional_config)
        shares = config.tenants if is_ours else None
        state.agentcache_jobs = JobReader(core.call_utility_all_async, placer, told, decode, shares=shares)
        if told is not None and is_ours:
            # A task without a reference may be garbage-collected before it is done.
            state.agentcache_expiry_watch = asyncio.create_task(watch_expiry(state.agentcache_jobs))
        state.agentcache_report = LiveReport(state.agentcache_jobs)
        if shares_engines(core):
            drain_before_shutdown(engine_client)
        # One of several API servers says so for all.
        if is_ours and not getattr(core, "client_index", 0) and (warning := describe_open_text(config, args)):
            logger.warning("%s", warning)
        # By now the server's parser is loaded.
        shorten_parser_errors()


def _find_router(vllm_config: VllmConfig) -> SessionRouter | None:
    url = read_config(vllm_config.additional_config).router.url
    if url is None:
        return None
    router = SessionRouter(url)
    router.check()
    return router


def _is_ours(scheduler: str | type[object] | None) -> bool:
    found = pkgutil.resolve_name(scheduler) if isinstance(scheduler, str) else scheduler
    return found is not None and issubclass(found, AgentScheduler)


def _find_metrics_route(app: FastAPI) -> APIRoute:
    for route in app.routes:
        if isinstance(route, APIRoute) and route.path == "/metrics":
            return route
    raise CompatibilityError("vLLM's server has no route /metrics that agentcache could add to")
