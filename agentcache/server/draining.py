"""Lets requests under way end before an API server that shares its engines with others shuts down.

One server alone leaves that to its engines, which finish what they have. Several do not own them, and vLLM 0.32 then
closes the connection at once, whatever is under way.
"""

from __future__ import annotations

import time
from functools import wraps

from agentcache.engine.vllm.engine import AsyncLLMEngine
from agentcache.engine.vllm.patches import replace

_POLL_S = 0.05
# What is left of --shutdown-timeout for the server itself: its parent kills it at the end.
_EXIT_S = 1.0


def drain_before_shutdown(engine: AsyncLLMEngine) -> None:
    """Have `engine.shutdown` wait for its requests, up to the timeout. vLLM calls it in a thread of its own."""
    shutdown = engine.shutdown

    @wraps(shutdown)
    def drain(timeout: float | None = None) -> None:
        deadline = time.monotonic() + max(0.0, (timeout or 0.0) - _EXIT_S)
        while engine.get_num_unfinished_requests() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        shutdown(timeout=timeout)

    replace(engine, "shutdown", drain)
