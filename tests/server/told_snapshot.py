"""A middleware for `vllm serve --middleware`: a server without our routes tells what its engines count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentcache.engine.rpc.snapshot import SNAPSHOT_METHOD

PATH = "/told-snapshot"


async def tell_snapshot(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    if request.url.path != PATH:
        return await call_next(request)
    core = request.app.state.engine_client.engine_core
    return JSONResponse(await core.call_utility_all_async(SNAPSHOT_METHOD))
