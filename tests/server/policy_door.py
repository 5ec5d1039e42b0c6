"""A middleware for `vllm serve --middleware`: a server without our routes goes on with another policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from agentcache.config_reader import CONFIG_KEY
from agentcache.server.embedded import switch_policy

PATH = "/use-policy"


async def take_policy(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Takes fields of AgentCacheConfig; the others stay as they were at the start."""
    if request.url.path != PATH:
        return await call_next(request)
    client = request.app.state.engine_client
    fields = client.vllm_config.additional_config[CONFIG_KEY] | await request.json()
    await switch_policy(client.engine_core, fields)
    return Response()
