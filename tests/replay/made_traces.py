"""Files of the workloads that were recorded without text, small enough to be followed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recorded_lines import make_line, write_recording

BLOCK = 64


def make_trace(path: Path, *prompts: tuple[int, ...], output: int = 20, wait_s: float = 0.1) -> Path:
    """A session of requests with these full blocks and a few tokens behind, and a wait for a tool between them."""
    requests: list[dict[str, Any]] = [
        {
            "t": float(number),
            "type": "n",
            "in": len(blocks) * BLOCK + 9,
            "out": output,
            "hash_ids": list(blocks),
            "input_types": ["tool_result"],
            "stop": "tool_use",
            "api_time": 0.1,
            "think_time": wait_s,
        }
        for number, blocks in enumerate(prompts)
    ]
    trace = {"id": path.stem, "block_size": BLOCK, "tool_tokens": 0, "system_tokens": 0, "requests": requests}
    path.write_text(json.dumps(trace))
    return path


def make_requests(path: Path, *prompts: tuple[int, ...]) -> Path:
    """A recording of requests, each of a session of its own, one a second, in whole blocks of 10 tokens."""
    lines = [
        make_line(1000 * number, 10 * len(blocks), 7, list(blocks), session=f"request-{number + 1}")
        for number, blocks in enumerate(prompts)
    ]
    return write_recording(path, *lines)
