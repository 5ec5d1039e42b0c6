"""Engines tell their data-parallel client which replies called no tool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from lone_scheduler import LoneScheduler, make_config, make_scheduler

from agentcache.engine.constants import ANSWER_MARK, SCHEDULER_CLASS
from tool_runtime.agent.job import ToolCall

PROMPT = list(range(40))


def run(model_path: str, requests: Iterable[tuple[str, list[ToolCall] | None]], **options: Any) -> list[set[str]]:
    """The finished requests that the client is told of, step by step, where any are."""
    scheduler = make_scheduler(make_config(model_path, SCHEDULER_CLASS, policy="agentcache"), 64, **options)
    lone, told = LoneScheduler(scheduler), list[set[str]]()
    update = scheduler.update_from_output

    def listen(*args: Any) -> Any:
        by_client = update(*args)
        told.extend(outputs.finished_requests for outputs in by_client.values() if outputs.finished_requests)
        return by_client

    scheduler.update_from_output = listen
    for name, calls in requests:
        lone.add(name, PROMPT, 4, calls, session_id=name)
        while not lone.idle:
            lone.step()
    return told


def test_replies_without_a_call_are_marked(tiny_model_path: str) -> None:
    requests = [("answers", []), ("calls", [ToolCall("search", "{}")]), ("is cut off", None)]
    told = run(tiny_model_path, requests, include_finished_set=True)
    assert told == [{"answers", "answers" + ANSWER_MARK}, {"calls"}, {"is cut off"}]


@pytest.mark.parametrize("calls", [[], [ToolCall("search", "{}")]])
def test_other_clients_are_told_nothing(calls: list[ToolCall], tiny_model_path: str) -> None:
    assert run(tiny_model_path, [("a", calls)]) == []
