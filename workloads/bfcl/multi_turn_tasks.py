"""BFCL v4's multi-turn tasks as the benchmark publishes them: what the user says, and the tools of the agent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from workloads.bfcl.dataset import read_constant, read_entries, read_tool_documents

_ID = re.compile(r"multi_turn_(?:base|long_context|miss_func|miss_param)(?=_\d+$)")


@dataclass(frozen=True, slots=True)
class Task:
    """`questions` has a message of the user for each turn of the user."""

    questions: tuple[str, ...]
    tools: tuple[Mapping[str, Any], ...]


def find_task(task_id: str) -> Task | None:
    """Find a task by its id, "multi_turn_base_0"; None if there is none. Raises InputError without bfcl-eval."""
    category = _ID.match(task_id)
    entry = _read_category(category[0]).get(task_id) if category else None
    if entry is None:
        return None
    questions = (" ".join(message["content"] for message in turn) for turn in entry["question"])
    documents = read_constant("executable_backend_config", "MULTI_TURN_FUNC_DOC_FILE_MAPPING")
    tools = (tool for name in entry["involved_classes"] for tool in read_tool_documents(documents[name]))
    return Task(tuple(question or _read_hint() for question in questions), tuple(tools))


@cache
def _read_category(category: str) -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in read_entries(f"data/BFCL_v4_{category}.json")}


def _read_hint() -> str:
    """Read what the benchmark says in a turn in which it only adds tools that were missing."""
    return str(read_constant("default_prompts", "DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC"))
