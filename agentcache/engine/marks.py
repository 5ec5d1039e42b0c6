"""Marks requests for the engine core in ways that no client can: what it cannot see in tokens.

The core reads them in the request's extra arguments, among what the client has sent; what a client sends under our
names is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from agentcache.engine.constants import ANSWER_MARK, CALLS_ARGUMENT, FILL_MARK, REPLY_ARGUMENT
from agentcache.engine.replies.ended_reply import EndedReply
from agentcache.engine.vllm.base import VLLMValidationError
from agentcache.engine.vllm.patches import ADDED_PREFIX
from agentcache.engine.vllm.types import Request, SamplingParams

# Clients may send these; `forced_reply.py` says when.
_OF_CLIENTS = frozenset((REPLY_ARGUMENT, CALLS_ARGUMENT))
_SHOWN = 64


def join_marks(params: SamplingParams, marks: Mapping[str, Any]) -> SamplingParams:
    """Return a copy of the parameters with marks among the extra arguments, as the engine core reads them."""
    joined = copy(params)
    joined.extra_args = {**(params.extra_args or {}), **marks}
    return joined


def read_mark(request: Request | EndedReply, name: str) -> Any:
    """Read a mark in the engine core, None if there is none. Front ends other than Python's let clients send any."""
    arguments = request.sampling_params and request.sampling_params.extra_args
    return arguments.get(name) if arguments else None


def refuse_marks(arguments: Mapping[str, Any] | None) -> None:
    """Raise what the server answers as a 400 for extra arguments that have a name of ours."""
    for name in arguments or ():
        if name.startswith(ADDED_PREFIX) and name not in _OF_CLIENTS:
            shown = name[:_SHOWN]
            raise VLLMValidationError(
                f"{shown}: the server keeps arguments that begin with {ADDED_PREFIX} for itself; leave it out",
                parameter=shown,
            )


def refuse_id(request_id: str) -> None:
    """Raise what the server answers as a 400 for an id that could be taken for one of ours."""
    for ours in (FILL_MARK, ANSWER_MARK):
        if ours in request_id:
            raise VLLMValidationError(
                f"request_id (X-Request-Id): the server keeps {ours} for ids of its own; leave it out",
                parameter="request_id",
            )
