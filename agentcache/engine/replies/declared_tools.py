"""The engine core sees tokens: the API server tells it which requests may call tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from agentcache.engine.constants import TOOL_CHOICE_ARGUMENT, TOOLS_DECLARED_ARGUMENT
from agentcache.engine.marks import mark
from agentcache.engine.patches import wrap_method
from tool_runtime.learning.tool_key import key_name

MAX_TOOLS = 512


@cache
def mark_declared_tools() -> None:
    """Have chat and Responses requests carry the names of their tools into the engine. Safe to call more than once."""
    for request_class in (ChatCompletionRequest, ResponsesRequest):
        wrap_method(request_class, "to_sampling_params", _mark)


def _mark(original: Callable[..., SamplingParams]) -> Callable[..., SamplingParams]:
    def to_sampling_params(self: Any, *args: Any, **kwargs: Any) -> SamplingParams:
        params: SamplingParams = original(self, *args, **kwargs)
        if self.tools and self.tool_choice != "none":
            mark(params, {TOOLS_DECLARED_ARGUMENT: _name_tools(self.tools), **_mark_choice(self.tool_choice)})
        return params

    return to_sampling_params


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
