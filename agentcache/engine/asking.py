"""Holds what the HTTP request in progress tells of itself beside what vLLM reads of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol


class HttpRequest(Protocol):
    """What the API server's middleware knows of a request."""

    # Which of its session's agents sends it, if its client says so.
    agent: str | None
    # The body of an Anthropic message, which vLLM makes a chat of; None in other requests.
    message: Mapping[str, Any] | None

    def name_session(self, request: Any, found: str | None) -> str | None:
        """Return the session of one of vLLM's requests, of which vLLM has `found` this one."""

    def read_session(self, found: str, tenant: str | None) -> str:
        """Return the session that vLLM has `found` in the headers, for a tenant given by its cache salt."""


# None where no request of our API server is in progress.
asking: ContextVar[HttpRequest | None] = ContextVar("agentcache_asking", default=None)
