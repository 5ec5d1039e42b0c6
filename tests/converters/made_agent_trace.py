"""Agent sessions with a few tokens, in the form of a trace file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BLOCK = 64


def make_request(t: float, blocks: Sequence[int], tail: int = 0, **fields: Any) -> dict[str, Any]:
    """A request with so many full blocks, and `tail` tokens behind them."""
    return {
        "t": t,
        "type": "n",
        "in": len(blocks) * BLOCK + tail,
        "out": 10,
        "hash_ids": list(blocks),
        "input_types": ["tool_result"],
        "stop": "tool_use",
        "api_time": 1.0,
        "think_time": 2.0,
        **fields,
    }


def make_sub_agent(t: float, requests: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    head = {"tool_tokens": 0, "system_tokens": 0}
    return {"t": t, "type": "subagent", "requests": list(requests), **head, **fields}


def make_trace(requests: Sequence[Mapping[str, Any]], tool_tokens: int = 0, system_tokens: int = 0) -> dict[str, Any]:
    return {
        "id": "made",
        "block_size": BLOCK,
        "hash_id_scope": "local",
        "tool_tokens": tool_tokens,
        "system_tokens": system_tokens,
        "requests": list(requests),
    }


def write_traces(folder: Path, *traces: Mapping[str, Any]) -> Path:
    for number, trace in enumerate(traces):
        (folder / f"trace_{number:04}.json").write_text(json.dumps(trace), encoding="utf-8")
    return folder
