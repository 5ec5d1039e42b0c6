"""Marks every request in the front end: whose messages its prompt is made of, and which tools it may call.

A request's handler finds the session, of the request that its client has sent; vLLM's input processor makes what the
engine gets. From the one to the other vLLM hands the name of the session, and so the marks go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from agentcache.engine.asking import asking
from agentcache.engine.constants import TOOL_CHOICE_ARGUMENT, TOOLS_DECLARED_ARGUMENT
from agentcache.engine.jobs.told_prompt import describe_chat, describe_response
from agentcache.engine.marks import join_marks, refuse_id, refuse_marks
from agentcache.engine.replies.forced_reply import force_replies
from agentcache.engine.vllm.engine import InputProcessor
from agentcache.engine.vllm.patches import wrap_method
from agentcache.engine.vllm.requests import ChatCompletionRequest, GenerateBaseServing, ResponsesRequest
from agentcache.engine.vllm.types import EngineCoreRequest, SamplingParams
from tool_runtime.learning.tool_key import key_name

MAX_TOOLS = 512
Process = Callable[..., EngineCoreRequest]


class MarkedSession(str):
    """The name of a request's session, empty for none, with the marks of the request."""

    marks: Mapping[str, Any]


@cache
def mark_prompts() -> None:
    """Give the core our marks of each request, and refuse what clients send under our names. May be called again."""
    wrap_method(GenerateBaseServing, "_get_session_id", _mark)
    wrap_method(InputProcessor, "process_inputs", lambda process: _join(force_replies(process)))


def _mark(find_session: Callable[..., str | None]) -> Callable[..., MarkedSession]:
    def get_session_id(request: Any, raw_request: Any) -> MarkedSession:
        # A server that streams its answer has begun it before the input processor sees the request, with status 200.
        refuse_marks(request.vllm_xargs)
        found, asked = find_session(request, raw_request), asking.get()
        session = MarkedSession((found if asked is None else asked.name_session(request, found)) or "")
        session.marks = _describe(request)
        return session

    return get_session_id


def _describe(request: Any) -> dict[str, Any]:
    # vLLM makes many requests of one token for a beam search.
    if isinstance(request, ChatCompletionRequest) and not request.use_beam_search:
        return {**describe_chat(request), **describe_tools(request)}
    if isinstance(request, ResponsesRequest):
        return {**describe_response(request), **describe_tools(request)}
    return {}


def describe_tools(request: Any) -> dict[str, Any]:
    """Build the marks that tell the engine which tools a chat or response may call; none if it may call none."""
    if not request.tools or request.tool_choice == "none":
        return {}
    return {TOOLS_DECLARED_ARGUMENT: _name_tools(request.tools), **_mark_choice(request.tool_choice)}


def _mark_choice(choice: Any) -> dict[str, bool | str]:
    """Mark what must be called: `choice` is "auto", "required", or names a tool as a chat's or a response's does."""
    if choice == "required":
        return {TOOL_CHOICE_ARGUMENT: True}
    name = getattr(getattr(choice, "function", choice), "name", None)
    return {TOOL_CHOICE_ARGUMENT: name} if isinstance(name, str) else {}


def _name_tools(tools: Sequence[Any]) -> list[str] | bool:
    """Name the tools; True where some are the server's own, which go by other names in a reply, or very many."""
    if len(tools) > MAX_TOOLS or any(tool.type != "function" for tool in tools):
        return True
    # A chat has functions in its tools; in a response they are its tools. A client's names may have any length.
    return [key_name(getattr(tool, "function", tool).name) for tool in tools]


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
        refuse_id(request_id)
        if isinstance(params, SamplingParams):
            refuse_marks(params.extra_args)
            if marks := getattr(session_id, "marks", None):
                params = join_marks(params, marks)
        request = process(self, request_id, prompt, params, *args, session_id=session_id, **kwargs)
        if isinstance(session_id, MarkedSession):
            request.session_id = str(session_id) or None
        elif session_id and (asked := asking.get()) is not None:
            request.session_id = asked.read_session(session_id, request.cache_salt)
        return request

    return process_inputs
