"""Finds OpenTelemetry's spans in JSON of any shape, and reads what all exporters and instrumentations say in them.

OTLP in lines, a list or one object, Tempo's batches, Jaeger's data, what exporters print to a console: a span is any
object with a trace and a time at which it began, wherever it stands. `conventions.json` has the names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agentcache.errors import InputError
from tool_runtime.bounds import MAX_TOKENS
from workloads.loaded import read_whole

CONVENTIONS = json.loads(Path(__file__).with_name("conventions.json").read_text(encoding="utf-8"))
_FIELDS: Mapping[str, Sequence[str]] = CONVENTIONS["fields"]
NAMES: Mapping[str, Sequence[str]] = CONVENTIONS["attributes"]
"""The attributes that say something, by what they say."""
SIZES = ("input", "output", "cache read", "cache written")
# Whole numbers have 64 bits.
_MOST = 2**63 - 1
_ERRORS = (2, "STATUS_CODE_ERROR", "ERROR")
# Further values begin at the beginning of a line: those inside of others are indented.
_VALUE = re.compile(r"^[\[{]", re.MULTILINE)


@dataclass(slots=True, eq=False)
class Span:
    """A span. `said` is what its attributes say, by the keys of `NAMES`; without a scope, its name stands for that."""

    place: str
    trace: str
    id: str
    parent: str
    name: str
    began_ns: int
    ended_ns: int
    failed: bool
    said: Mapping[str, Any]


def read_spans(path: Path, broken: list[str]) -> Iterator[Span]:
    """Read a file's spans. What is broken is added to `broken`, with its place.

    Raises InputError if the file cannot be read.
    """
    for place, value in _read_values(path, broken):
        for fields, scope in _find_spans(value):
            try:
                yield _read_span(fields, scope, place)
            except InputError as error:
                broken.append(f"{place}: {error}")


def _read_values(path: Path, broken: list[str]) -> Iterator[tuple[str, Any]]:
    """Read the JSON values, one a line or over many lines. Text between them, as on a console, is passed over."""
    data = read_whole(path)
    try:
        text = data.decode(json.detect_encoding(data))
    except UnicodeDecodeError:
        raise InputError(f"{path}: is no text, perhaps OTLP's protobuf; have spans exported as JSON") from None
    decoder, end, line = json.JSONDecoder(), 0, 1
    while match := _VALUE.search(text, end):
        line += text.count("\n", end, match.start())
        place, end = f"{path}:{line}", match.end()
        try:
            value, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            broken.append(f"{place}: no whole JSON begins here; if the file was cut off, export it again")
        else:
            yield place, value
        line += text.count("\n", match.start(), end)


def _find_spans(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Find the spans anywhere in a value, each with the name of its scope."""
    inside: list[tuple[Any, str]] = [(value, "")]
    while inside:
        each, scope = inside.pop()
        if isinstance(each, dict):
            context = each.get("context")
            fields = {**each, **context} if isinstance(context, dict) else each
            if _get(fields, _FIELDS["trace"]) and _get(fields, _FIELDS["began"]) is not None:
                yield fields, scope
                continue
            named = each.get("scope") or each.get("instrumentationLibrary")
            scope = str(named.get("name")) if isinstance(named, dict) else scope
            each = list(each.values())
        if isinstance(each, list):
            inside += [(item, scope) for item in reversed(each)]


def _read_span(fields: dict[str, Any], scope: str, place: str) -> Span:
    trace, own, parent, name = (_get(fields, _FIELDS[field]) for field in ("trace", "id", "parent", "name"))
    match parent:
        case [{"spanID": parent}, *_]:  # Jaeger's references.
            pass
    began, ended = (_find(fields, _FIELDS[field]) for field in ("began", "ended"))
    began_ns = _read_time(fields, began)
    lasts = ended not in fields and "duration" in fields
    ended_ns = began_ns + 1000 * _read_count(fields, "duration") if lasts else _read_time(fields, ended)
    if ended_ns < began_ns:
        raise InputError(f"{ended}: {fields[ended]} is before {began}, {fields[began]}")
    attributes = read_attributes(fields)
    said = {what: value for what, names in NAMES.items() if (value := _get(attributes, names)) is not None}
    for size in said.keys() & SIZES:
        said[size] = _read_count(attributes, _find(attributes, NAMES[size]), most=MAX_TOKENS)
    said["scope"] = scope or str(said.get("scope") or name)
    failed = _has_failed(fields, attributes)
    return Span(
        place, str(trace), str(own or ""), str(parent or ""), str(name or "span"), began_ns, ended_ns, failed, said
    )


def _has_failed(fields: dict[str, Any], attributes: Mapping[str, Any]) -> bool:
    status = fields.get("status")
    codes = [*status.values()] if isinstance(status, dict) else [fields.get("status_code")]
    return (
        "error.type" in attributes
        or any(code in _ERRORS for code in (*codes, attributes.get("otel.status_code")))
        or str(attributes.get("error")).lower() == "true"
        or str(attributes.get("success")).lower() == "false"
    )


def _read_time(fields: dict[str, Any], name: str) -> int:
    """Read nanoseconds since 1970, from ISO's text as well, and from Jaeger's microseconds."""
    value = fields.get(name)
    if not isinstance(value, str) or value.isdigit():
        unit_ns = 1000 if name == "startTime" else 1
        return _read_count(fields, name, most=_MOST // unit_ns) * unit_ns
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise InputError(f"{name}: is {value[:40]!r}, no time such as 2026-01-31T23:59:59Z") from None
    since = time.replace(tzinfo=time.tzinfo or UTC) - datetime.fromtimestamp(0, UTC)
    return _read_count({name: since // timedelta(microseconds=1) * 1000}, name)


def _read_count(values: Mapping[str, Any], name: str, *, most: int = _MOST) -> int:
    """Read a whole number, which OTLP's JSON writes as text where it has 64 bits."""
    value = values.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(_MOST)):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InputError(f"{name}: is {json.dumps(value)[:40]}, not a whole number from 0 to {most}")
    return value


def read_attributes(fields: dict[str, Any]) -> dict[str, Any]:
    """Read a span's attributes, in OTLP's or Jaeger's list or an object. Raises InputError for anything else."""
    given = fields.get("attributes") or fields.get("tags") or ()
    try:
        return given if isinstance(given, dict) else {each["key"]: _read_value(each["value"]) for each in given}
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise InputError("attributes: is no list of keys and values") from None


def _read_value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "arrayValue" in value:
        return [_read_value(each) for each in value["arrayValue"].get("values", ())]
    return next(iter(value.values()), None)


def _find(values: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((name for name in names if values.get(name) is not None), names[0])


def _get(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    return values.get(_find(values, names))
