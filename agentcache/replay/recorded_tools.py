"""Makes a job's tools from its recording: each call returns the recorded text after the recorded time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain
from typing import Any

from tool_runtime.agent.job import Job, ToolResult
from tool_runtime.agent.tools import Tool, ToolRegistry

Sleep = Callable[[float], Awaitable[None]]


def recorded_tools(job: Job, sleep: Sleep = asyncio.sleep) -> ToolRegistry:
    """Make the tools. Results are given out in the order in which calls start, which is that of the recording."""
    results = chain.from_iterable(turn.results for turn in job.turns)

    async def answer(**_arguments: Any) -> str:
        # Take it before the first wait: calls of one turn start in order, whichever ends first.
        result: ToolResult | None = next(results, None)
        if result is None:
            raise LookupError("the recording has no further tool result")
        await sleep(result.duration_s)
        return result.content

    registry = ToolRegistry()
    for tool in job.tools:
        registry.add(_as_tool(tool["function"], answer))
    # A model may have called a tool it was not offered; its recorded result, an error text, is returned like others.
    for name in {call.name for turn in job.turns for call in turn.tool_calls}.difference(registry.names):
        registry.add(Tool(name, "", {"type": "object"}, answer))
    return registry


def _as_tool(function: Mapping[str, Any], answer: Callable[..., Awaitable[str]]) -> Tool:
    return Tool(function["name"], function.get("description", ""), function["parameters"], answer)
