"""Recordings made by hand, of blocks of 10 tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BLOCK = 10
HEADER = {
    "version": 1,
    "id": "a",
    "block_tokens": BLOCK,
    "model": "tiny",
    "policy": "vllm",
    "started_at": "2026-11-23T12:00:00+00:00",
}


def make_line(timestamp: float, prompt: int, reply: int, ids: list[int], **changes: Any) -> dict[str, Any]:
    """A request of 100 ms whose prompt and reply fill the first of these blocks, and a rest if that is needed."""
    blocks = -(-prompt // BLOCK)
    line = {
        "timestamp": timestamp,
        "input_length": prompt,
        "output_length": reply,
        "hash_ids": ids[:blocks],
        "reply_ids": ids[blocks:],
        "latency_ms": 100,
        "end": "answer",
    }
    return line | changes


def write_recording(path: Path, *lines: dict[str, Any], header: dict[str, Any] | None = None) -> Path:
    first, *others = lines
    texts = [json.dumps(line) for line in ({"recording": header or HEADER, **first}, *others)]
    path.write_text("\n".join([*texts, ""]))
    return path
