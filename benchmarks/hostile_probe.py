"""Middleware that tells how long an API server's event loop could do nothing else, and what the server takes of memory.

Give it to a server as `--middleware hostile_probe.LoopProbe`, with this folder in PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import psutil
from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/loop-probe"
_BEAT_S = 0.001


class LoopProbe:
    """`GET /loop-probe` answers with the longest gap since the last call, and with the processes' RSS."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._worst_s = 0.0
        self._beating: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())
        body = json.dumps({"gap_ms": 1e3 * self._worst_s, **_read_memory()}).encode()
        self._worst_s = 0.0
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _beat(self) -> None:
        """Count a gap in wall time, but no more of it than this process had of the CPU: others may use the machine."""
        while True:
            wall_s, cpu_s = time.monotonic(), time.process_time()
            await asyncio.sleep(_BEAT_S)
            gap_s = min(time.monotonic() - wall_s - _BEAT_S, time.process_time() - cpu_s)
            self._worst_s = max(self._worst_s, gap_s)


def _read_memory() -> dict[str, Any]:
    """RSS of this process, the API server, and of the largest of its children, which is the engine core."""
    own = psutil.Process()
    children = [child.memory_info().rss for child in own.children(recursive=True)]
    return {"server_mb": own.memory_info().rss / 2**20, "core_mb": max(children, default=0) / 2**20}
