"""Reads BFCL v4 web_search as the benchmark publishes it: questions, system message and tools, from bfcl-eval's files.

The package is read, never run: its loaders import the SDKs of a dozen vendors.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agentcache.errors import InputError
from tool_runtime.agent.job import Message

SEARCH_TOOL = "search_engine_query"
FETCH_TOOL = "fetch_url_content"

_INSTALL = "run `pip install --no-deps bfcl-eval`"
# bfcl-eval adds this to every description of a tool that is not in Java or JavaScript.
_LANGUAGE_HINT = " Note that the provided function is in Python 3 syntax."


@dataclass(frozen=True, slots=True)
class Question:
    """One task of the benchmark. `id` is "web_search_0" to "web_search_99"."""

    id: str
    text: str


@cache
def read_questions() -> tuple[Question, ...]:
    """Read all questions in the benchmark's order. Raises InputError when bfcl-eval is not installed."""
    entries = read_entries("data/BFCL_v4_web_search.json")
    return tuple(Question(entry["id"], entry["question"][0][0]["content"]) for entry in entries)


@cache
def read_system_message() -> Message:
    """Read the message that asks for a final answer as {'answer': ..., 'context': ...}."""
    text = read_constant("default_prompts", "ADDITIONAL_SYSTEM_PROMPT_FOR_AGENTIC_RESPONSE_FORMAT")
    return {"role": "system", "content": text}


@cache
def read_tools() -> tuple[Mapping[str, Any], ...]:
    """Read the search and the fetch tool, as the OpenAI API takes them."""
    return read_tool_documents("web_search.json")


@cache
def read_tool_documents(name: str) -> tuple[Mapping[str, Any], ...]:
    """Read the tools of one of the benchmark's files of tool documents, as the OpenAI API takes them."""
    types = read_constant("type_mappings", "GORILLA_TO_OPENAPI")
    return tuple(_to_openai_tool(document, types) for document in read_entries(f"data/multi_turn_func_doc/{name}"))


def _to_openai_tool(document: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    function = {
        "name": document["name"],
        "description": document["description"] + _LANGUAGE_HINT,
        "parameters": _to_json_schema(document["parameters"], types),
    }
    return {"type": "function", "function": function}


def _to_json_schema(schema: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """Replace BFCL's type names ("dict", "float", ...) in the schema by JSON Schema's, at every depth."""
    converted = {**schema, "type": types.get(schema.get("type", "string"), "string")}
    if "properties" in schema:
        converted["properties"] = {name: _to_json_schema(inner, types) for name, inner in schema["properties"].items()}
    if "items" in schema:
        converted["items"] = _to_json_schema(schema["items"], types)
    return converted


def read_entries(name: str) -> list[dict[str, Any]]:
    """Read the JSON lines of a file of the package. Raises InputError when it is not there."""
    path = _find_package() / name
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        raise InputError(f"bfcl-eval is installed without {name}; {_INSTALL}, a version with BFCL v4") from None
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def read_constant(module: str, name: str) -> Any:
    """Read a constant of bfcl_eval.constants. The modules asked for hold plain values and import nothing.

    Raises InputError when it is not there.
    """
    _find_package()
    try:
        return getattr(importlib.import_module(f"bfcl_eval.constants.{module}"), name)
    except (ImportError, AttributeError):
        raise InputError(
            f"bfcl-eval is installed without {module}.{name}; {_INSTALL}, a version with BFCL v4"
        ) from None


def _find_package() -> Path:
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the BFCL questions come with the package bfcl-eval, which is not installed: {_INSTALL}")
    return Path(spec.submodule_search_locations[0])
