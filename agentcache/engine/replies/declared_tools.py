"""The engine core sees tokens: the API server tells it which requests may call tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentcache.engine.constants import TOOL_CHOICE_ARGUMENT, TOOLS_DECLARED_ARGUMENT
from tool_runtime.learning.tool_key import key_name

MAX_TOOLS = 512


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
