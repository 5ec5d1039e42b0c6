"""Marks every request for the engine core, in ways that no client can, with what it cannot see in tokens.

A request's handler finds the session, of the request that its client has sent; vLLM's input processor makes what the
engine gets. From the one to the other vLLM hands the name of the session, and so the marks go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import cache
from typing import Any

from agentcache.engine.constants import (
    AGENT_ARGUMENT,
    ANSWER_MARK,
    CALLS_ARGUMENT,
    EXPECTED_ARGUMENT,
    FILL_MARK,
    PARENT_ARGUMENT,
    REPLY_ARGUMENT,
)
from agentcache.engine.marks import shorten
from agentcache.engine.vllm.base import VLLMValidationError
from agentcache.engine.vllm.engine import InputProcessor
from agentcache.engine.vllm.patches import ADDED_PREFIX, wrap_method
from agentcache.engine.vllm.requests import ChatCompletionRequest, GenerateBaseServing, ResponsesRequest
from agentcache.engine.vllm.types import EngineCoreRequest, SamplingParams
from agentcache.front_end.client_sessions import SessionRequest, asking
from agentcache.front_end.descriptions import describe_chat, describe_response
from agentcache.front_end.forced_replies import force_replies
from agentcache.front_end.tenant_salts import salting

# Clients may send these; `forced_replies.py` says when.
_OF_CLIENTS = frozenset((REPLY_ARGUMENT, CALLS_ARGUMENT))
_SHOWN = 64
Process = Callable[..., EngineCoreRequest]


class MarkedSession(str):
    """The name of a request's session, empty for none, with the marks of the request."""

    marks: Mapping[str, Any]


@cache
def mark_requests() -> None:
    """Give the core our marks of each request, and refuse what clients send under our names. May be called again."""
    wrap_method(GenerateBaseServing, "_get_session_id", _mark)
    wrap_method(InputProcessor, "process_inputs", lambda process: _join(force_replies(process)))


def _mark(find_session: Callable[..., str | None]) -> Callable[..., MarkedSession]:
    def get_session_id(request: Any, raw_request: Any) -> MarkedSession:
        # A server that streams its answer has begun it before the input processor sees the request, with status 200.
        refuse_marks(request.vllm_xargs)
        found, asked = find_session(request, raw_request), asking.get()
        session = MarkedSession((found if asked is None else asked.name_session(request, found)) or "")
        session.marks = _describe(request, asked)
        return session

    return get_session_id


def _describe(request: Any, asked: SessionRequest | None) -> dict[str, Any]:
    # vLLM makes many requests of one token for a beam search.
    if getattr(request, "use_beam_search", False):
        return {}
    marks: dict[str, Any] = {}
    if isinstance(request, ChatCompletionRequest):
        marks = describe_chat(request, None if asked is None else asked.message)
    elif isinstance(request, ResponsesRequest):
        marks = describe_response(request)
    if asked is not None:
        marks |= _describe_agent(asked)
    return marks


def _describe_agent(asked: SessionRequest) -> dict[str, Any]:
    """Build the marks of who asks, for whom, and what its client expects."""
    names = {AGENT_ARGUMENT: asked.agent, PARENT_ARGUMENT: asked.agent and asked.parent}
    marks: dict[str, Any] = {argument: shorten(name) for argument, name in names.items() if name is not None}
    if asked.context is not None and asked.context.expected:
        marks[EXPECTED_ARGUMENT] = asked.context.expected
    return marks


def _join(process: Process) -> Process:
    def process_inputs(
        self: InputProcessor,
        request_id: str,
        prompt: Any,
        params: Any,
        *args: Any,
        session_id: str | None = None,
        **kwargs: Any,
    ) -> EngineCoreRequest:
        _refuse_id(request_id)
        if isinstance(params, SamplingParams):
            refuse_marks(params.extra_args)
            if marks := getattr(session_id, "marks", None):
                params = join_marks(params, marks)
        request = process(self, request_id, prompt, params, *args, session_id=session_id, **kwargs)
        if isinstance(session_id, MarkedSession):
            request.session_id = str(session_id) or None
        elif session_id and (asked := asking.get()) is not None:
            request.session_id = asked.read_session(session_id, request.cache_salt)
        request.cache_salt = salting.get()(request.cache_salt)
        return request

    return process_inputs


def join_marks(params: SamplingParams, marks: Mapping[str, Any]) -> SamplingParams:
    """Return a copy of the parameters with marks among the extra arguments, as the engine core reads them."""
    joined = copy(params)
    joined.extra_args = {**(params.extra_args or {}), **marks}
    return joined


def refuse_marks(arguments: Mapping[str, Any] | None) -> None:
    """Raise what the server answers as a 400 for extra arguments that have a name of ours."""
    for name in arguments or ():
        if name.startswith(ADDED_PREFIX) and name not in _OF_CLIENTS:
            shown = name[:_SHOWN]
            raise VLLMValidationError(
                f"{shown}: the server keeps arguments that begin with {ADDED_PREFIX} for itself; leave it out",
                parameter=shown,
            )


def _refuse_id(request_id: str) -> None:
    """Raise what the server answers as a 400 for an id that could be taken for one of ours."""
    for ours in (FILL_MARK, ANSWER_MARK):
        if ours in request_id:
            raise VLLMValidationError(
                f"request_id (X-Request-Id): the server keeps {ours} for ids of its own; leave it out",
                parameter="request_id",
            )
