"""What clients can ask of us beside the OpenAI API."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.status import HTTP_404_NOT_FOUND, HTTP_503_SERVICE_UNAVAILABLE

from agentcache.server.metrics import render_metrics
from agentcache.server.snapshot_reader import SnapshotReader

PREFIX = "/agentcache"
router = APIRouter(prefix=PREFIX)


@router.get("/state")
async def get_state(request: Request) -> dict[str, Any]:
    """Policy, knobs in force, counts, blocks and requests of every engine; `age_s` is how old that is."""
    reading = await _reader(request).read()
    if reading is None:
        raise HTTPException(HTTP_503_SERVICE_UNAVAILABLE, "The engine does not answer; try again.")
    if not reading.engines:
        raise HTTPException(HTTP_404_NOT_FOUND, "The engine runs without agentcache's scheduler.")
    return {"age_s": reading.age_s, "engines": [engine.model_dump(mode="json") for engine in reading.engines]}


class MetricsRoute:
    """`GET /metrics`: what vLLM answers, and the engines' counts behind it."""

    def __init__(self, own: APIRoute) -> None:
        """`own` is vLLM's route."""
        self._own = own

    async def serve(self, request: Request) -> Response:
        reading = await _reader(request).read()
        # It reads files when there are several API servers.
        answer: Response = await run_in_threadpool(self._own.endpoint, request)
        return Response(
            bytes(answer.body) + render_metrics(reading), headers={"Content-Type": answer.headers["Content-Type"]}
        )


def _reader(request: Request) -> SnapshotReader:
    reader: SnapshotReader = request.app.state.agentcache_snapshots
    return reader
