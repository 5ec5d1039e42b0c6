"""vllm-router's contract: what is read of it, and what is refused in a line that names the field."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from agentcache.engine.vllm.base import VLLMValidationError
from agentcache.front_end.agentic_context import LONGEST_S, AgenticContext, read_context


def read(**told: Any) -> AgenticContext:
    context = read_context({"agentic_context": told})
    assert context is not None
    return context


# As the router's documentation has it.
WHOLE = {
    "program_id": "task-a:researcher",
    "task_id": "task-a",
    "session_id": "session-a",
    "agent_id": "researcher",
    "parent_program_id": "task-a:lead",
    "root_program_id": "task-a:lead",
    "blocks_parent": False,
    "expected_resume": True,
    "agent_role": "subagent",
    "spawn_reason": "research",
    "request_id": "request-a",
    "step_id": 7,
    "priority": 10,
    "deadline_seconds": 30,
    "expected_output_length": 2048,
    "kv_retention_ttl_seconds": 5,
}


@pytest.mark.parametrize("told", [WHOLE, json.dumps(WHOLE)], ids=["object", "text"])
def test_the_routers_example_is_read_and_taken_out(told: Any) -> None:
    arguments = {"agentic_context": told, "theirs": 1}
    context = read_context(arguments)
    assert context is not None
    assert arguments == {"theirs": 1}
    assert (context.session, context.parent, context.root_program_id) == ("task-a:researcher", *["task-a:lead"] * 2)
    names = "blocks_parent", "expected_resume", "priority", "deadline_seconds", "expected_output_length"
    assert context.expected == {name: WHOLE[name] for name in (*names, "kv_retention_ttl_seconds")}


@pytest.mark.parametrize(
    ("told", "session", "parent", "agents"),
    [
        ({}, None, None, (None, None)),
        ({"task_id": "t"}, "t", None, (None, None)),
        ({"task_id": "t", "agent_id": "lead"}, "t", None, (None, None)),
        ({"task_id": 7, "agent_id": "a"}, "7", None, ("a", None)),
        ({"session_id": "s", "agent_id": "b", "parent_agent_id": "a"}, "s", None, ("b", "a")),
        ({"program_id": "p"}, "p", None, (None, None)),
        ({"program_id": "p", "parent_id": "q"}, "p", "q", (None, None)),
        ({"program_id": "t:b", "task_id": "t", "parent_agent_id": "a"}, "t:b", "t:a", (None, "a")),
        ({"task_id": "t", "agent_id": "b", "parent_program_id": "q"}, "t:b", "q", ("b", None)),
        ({"program_id": "p", "root_id": "r"}, "p", "r", (None, None)),
    ],
)
def test_who_asks_is_found(told: dict[str, Any], session: str | None, parent: str | None, agents: Any) -> None:
    context = read(**told)
    assert (context.session, context.parent, (context.agent_id, context.parent_agent_id)) == (session, parent, agents)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("expected_resume", 3.5),
        ("blocks_parent", "yes"),
        ("kv_retention_ttl_seconds", -1),
        ("kv_retention_ttl", math.nan),
        ("deadline_seconds", math.inf),
        ("deadline", "soon"),
        ("deadline", True),
        ("expected_output_length", -1),
        ("expected_output_tokens", 2.5),
        ("expected_output_length", 10**30),
        ("priority", "high"),
        ("priority", 10**400),
        ("program_id", ""),
        ("program_id", "x" * 257),
        ("program_id", "\ud800"),
        ("parent_program_id", ["p"]),
        ("retention", 5),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError) as caught:
        read(**{field: value})
    shown = str(caught.value)
    assert shown.startswith("agentic_context.")
    assert field in shown or field == "expected_output_tokens", "one name stands for both spellings"
    assert "\n" not in shown


@pytest.mark.parametrize("told", [7, ["x"], "no json", "[" * 20_000, '{"priority": NaN}'])
def test_what_is_no_object_is_refused(told: Any) -> None:
    with pytest.raises(VLLMValidationError, match="agentic_context"):
        read_context({"agentic_context": told})


def test_long_promises_count_for_ten_minutes() -> None:
    assert read(kv_retention_ttl=10**9).expected == {"kv_retention_ttl_seconds": LONGEST_S}


def test_without_a_contract_nothing_is_read() -> None:
    assert [read_context(arguments) for arguments in (None, {}, "x", {"agentic_context": None})] == [None] * 4
