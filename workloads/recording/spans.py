"""Spans of OpenTelemetry's conventions for generative AI, from OTLP's JSON lines: calls of a model, runs of a tool.

Read are docs/gen-ai/gen-ai-spans.md of the semantic conventions at v1.37.0, and OTLP's file exporter. Lines come in any
order, and a line has any number of spans.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcache.errors import InputError
from tool_runtime.bounds import MAX_TOKENS
from workloads.loaded import read_lines

TOP = "resourceSpans"
# Others that have usage, such as `invoke_agent`, sum up their children's.
_INFERENCE = ("chat", "text_completion", "generate_content")
_EXECUTE_TOOL = "execute_tool"
# Whole numbers have 64 bits.
_MOST = 2**63 - 1
_STATUS_ERROR = (2, "STATUS_CODE_ERROR")


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A request to a model. Times are in nanoseconds since 1970. `reasons` are why each choice of the reply ended."""

    session: str
    began_ns: int
    ended_ns: int
    model: str
    input_tokens: int
    output_tokens: int
    reasons: tuple[str, ...]
    failed: bool


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool that ran for a session."""

    session: str
    began_ns: int
    name: str


def read_spans(path: Path, broken: list[str]) -> Iterator[ModelCall | ToolRun]:
    """Read a file's calls and runs; other spans are passed over. What is broken is added to `broken`, with its place.

    Raises InputError if the file cannot be read.
    """
    for number, text in read_lines(path):
        place = f"{path}:{number}"
        try:
            spans = list(_list_spans(json.loads(text)))
        except (ValueError, TypeError, AttributeError, RecursionError):
            broken.append(
                f"{place}: is no object with {TOP}, scopeSpans and spans, as OTLP's file exporter writes them"
            )
            continue
        for span in spans:
            try:
                found = _read_span(span)
            except InputError as error:
                broken.append(f"{place}: {error}")
            else:
                if found is not None:
                    yield found


def _list_spans(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in line[TOP] if TOP in line else _refuse():
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield span if isinstance(span, dict) else _refuse()


def _refuse() -> Any:
    raise ValueError


def _read_span(span: dict[str, Any]) -> ModelCall | ToolRun | None:
    attributes = _read_attributes(span)
    operation = attributes.get("gen_ai.operation.name")
    if operation not in (*_INFERENCE, _EXECUTE_TOOL):
        return None
    # Without the id of a conversation, a trace is one.
    session = attributes.get("gen_ai.conversation.id") or span.get("traceId")
    if not isinstance(session, str) or not session:
        raise InputError("gen_ai.conversation.id: is missing, and traceId is, too; the instrumentation must set one")
    began_ns, ended_ns = (_read_count(span, name) for name in ("startTimeUnixNano", "endTimeUnixNano"))
    if ended_ns < began_ns:
        raise InputError(f"endTimeUnixNano: {ended_ns} is before startTimeUnixNano, {began_ns}")
    if operation == _EXECUTE_TOOL:
        return ToolRun(session, began_ns, str(attributes.get("gen_ai.tool.name", "tool")))
    reasons = attributes.get("gen_ai.response.finish_reasons", ())
    return ModelCall(
        session,
        began_ns,
        ended_ns,
        str(attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model") or "unknown"),
        _read_count(attributes, "gen_ai.usage.input_tokens", least=1, most=MAX_TOKENS),
        _read_count(attributes, "gen_ai.usage.output_tokens", most=MAX_TOKENS),
        tuple(map(str, reasons)) if isinstance(reasons, list) else (),
        failed="error.type" in attributes or (span.get("status") or {}).get("code") in _STATUS_ERROR,
    )


def _read_count(values: dict[str, Any], name: str, *, least: int = 0, most: int = _MOST) -> int:
    """Read a whole number, which OTLP's JSON writes as text where it has 64 bits."""
    value = values.get(name)
    if value is None:
        raise InputError(f"{name}: is missing; the instrumentation must record it")
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(_MOST)):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{name}: is {json.dumps(value)[:40]}, not a whole number from {least} to {most}")
    return value


def _read_attributes(span: dict[str, Any]) -> dict[str, Any]:
    try:
        return {each["key"]: _read_value(each["value"]) for each in span.get("attributes", ())}
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise InputError("attributes: is no list of keys and values") from None


def _read_value(value: dict[str, Any]) -> Any:
    if "arrayValue" in value:
        return [_read_value(each) for each in value["arrayValue"].get("values", ())]
    return next(iter(value.values()), None)
