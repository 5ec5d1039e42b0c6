"""Requests that wait, and what they wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tracked_requests import ASKED, BLOCK, Tracked
from vllm import SamplingParams
from vllm.v1.request import Request

from agentcache.policy.runtime_policy import Order, RuntimePolicy
from tool_runtime.agent.job import ToolCall

SEARCH = ToolCall("search", "{}")


def make_waiting(pinned: int, **runtime_policy: Any) -> Tracked:
    pins = SimpleNamespace(
        blocks=pinned,
        step=lambda: None,
        begin=lambda *_, **__: None,
        await_return=lambda _: False,
        end=lambda *_: None,
        guard=lambda *_: None,
        drop_guard=lambda _: None,
    )
    runtime_policy = {"wait_for_pins": "weighed", "order": Order(patience_s=8.0), **runtime_policy}
    return Tracked(RuntimePolicy(**runtime_policy), pins=pins, waiting=1)


# Of the 100 blocks that `Tracked` has; with BLOCKS_ASKED a new job needs so many free beside the pins.
RESERVED = Order(patience_s=8.0, reserve=0.04)


BLOCKS_ASKED = -(-len(ASKED) // BLOCK)


def make_request(name: str, arrival_time: float = 0.0) -> Request:
    return Request(name, [1, 2, 3], SamplingParams(max_tokens=4), None, arrival_time=arrival_time)
