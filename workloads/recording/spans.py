"""Reads spans of OpenTelemetry's conventions for generative AI, from OTLP's JSON lines, as lines of a recording.

It follows docs/gen-ai/gen-ai-spans.md of the semantic conventions at v1.37.0, and OTLP's file exporter. Lines come in
any order, and a line has any number of spans.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

from agentcache.errors import InputError
from tool_runtime.bounds import MAX_TOKENS
from workloads.loaded import read_lines
from workloads.recording.line import VERSION, End, Header, Line

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


ASSUMPTION = (
    "Sizes and times are of OpenTelemetry's spans, which do not tell what repeats what: each prompt is taken to extend "
    "the prompt and reply before it in its conversation where it is long enough, else that prompt alone, else nothing. "
    "Conversations are taken to share nothing, so hits are understated where they share a system prompt."
)
_BLOCK_TOKENS = 512
_ASKS_TOOLS = ("tool_call", "tool_calls", "tool_use", "function_call")
_CUT_OFF = ("length", "max_tokens")
# Of a reply that asks for tools whose runs were not traced.
_UNTRACED = "(untraced)"


def read_traced(path: Path, broken: list[str]) -> tuple[Header, list[Line]]:
    """Read a file of spans as a recording's header and lines, in the order in which requests came.

    Raises InputError for a file without any call of a model.
    """
    spans = list(read_spans(path, broken))
    calls = sorted((span for span in spans if isinstance(span, ModelCall)), key=lambda call: call.began_ns)
    if not calls:
        what = f"; the first span is broken so: {broken[0]}" if broken else ""
        raise InputError(
            f"{path}: gen_ai.operation.name: no span has chat, text_completion or generate_content{what}; trace the "
            "client, or record with `agentcache serve --record`"
        )
    runs: dict[str, list[ToolRun]] = defaultdict(list)
    for span in sorted((span for span in spans if isinstance(span, ToolRun)), key=lambda run: run.began_ns):
        runs[span.session].append(span)
    first_ns = calls[0].began_ns
    header = Header(
        version=VERSION,
        id="spans",
        block_tokens=_BLOCK_TOKENS,
        model=calls[0].model,
        policy="not known",
        started_at=datetime.fromtimestamp(first_ns / 1e9, UTC).isoformat(timespec="seconds"),
    )
    return header, list(_Tracer(runs, first_ns).trace(calls))


@dataclass(slots=True)
class _Thread:
    """What calls of a session one after the other hold: the last one's sizes, and the ids of its full blocks."""

    ended_ns: int = 0
    prompt: int = 0
    known: int = 0
    blocks: list[int] = field(default_factory=list)

    def count_repeated(self, tokens: int) -> int:
        """Count the tokens that a prompt of so many begins with."""
        return next((size for size in (self.known, self.prompt) if size <= tokens), 0)


class _Tracer:
    def __init__(self, runs: dict[str, list[ToolRun]], first_ns: int) -> None:
        self._runs = runs
        self._first_ns = first_ns
        self._ids = count()
        self._threads: dict[str, list[_Thread]] = defaultdict(list)

    def trace(self, calls: Sequence[ModelCall]) -> Iterator[Line]:
        follows_ns = _find_following(calls)
        for place, call in enumerate(calls):
            yield self._make_line(call, follows_ns.get(place))

    def _make_line(self, call: ModelCall, follows_ns: int | None) -> Line:
        hash_ids, reply_ids = self._name_blocks(call)
        end = _find_end(call)
        called = [] if end == "failed" else self._list_called(call, follows_ns)
        if end == "calls" and not called:
            called = [_UNTRACED]
        return Line(
            timestamp=(call.began_ns - self._first_ns) / 1e6,
            input_length=call.input_tokens,
            output_length=call.output_tokens,
            hash_ids=hash_ids,
            reply_ids=reply_ids,
            session=call.session,
            latency_ms=(call.ended_ns - call.began_ns) / 1e6,
            called=called,
            end="calls" if called else end,
        )

    def _name_blocks(self, call: ModelCall) -> tuple[list[int], list[int]]:
        """Name the prompt's blocks, and those that the reply fills behind them."""
        thread = self._find_thread(call)
        repeated = thread.count_repeated(call.input_tokens) // _BLOCK_TOKENS
        thread.ended_ns, thread.prompt = call.ended_ns, call.input_tokens
        thread.known = call.input_tokens + call.output_tokens
        full, blocks = thread.known // _BLOCK_TOKENS, -(-call.input_tokens // _BLOCK_TOKENS)
        thread.blocks = [*thread.blocks[:repeated], *islice(self._ids, full - repeated)]
        # One in part has an id that nothing else has.
        in_part = islice(self._ids, max(0, blocks - full))
        return [*thread.blocks[:blocks], *in_part], thread.blocks[blocks:]

    def _find_thread(self, call: ModelCall) -> _Thread:
        """Find the idle thread that the prompt repeats most of, a new one where all are busy, as beside sub-agents."""
        threads = self._threads[call.session]
        idle = [thread for thread in threads if thread.ended_ns <= call.began_ns]
        if not idle:
            threads.append(_Thread())
            return threads[-1]
        return max(idle, key=lambda thread: thread.count_repeated(call.input_tokens))

    def _list_called(self, call: ModelCall, follows_ns: int | None) -> list[str]:
        """List the tools that ran between the call and the session's next one."""
        runs = self._runs[call.session]
        start = bisect_left(runs, call.ended_ns, key=lambda run: run.began_ns)
        stop = len(runs) if follows_ns is None else bisect_left(runs, follows_ns, key=lambda run: run.began_ns)
        return [run.name for run in runs[start:stop]]


def _find_following(calls: Sequence[ModelCall]) -> dict[int, int]:
    """Find when each call's session calls next, by the call's place."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, call in enumerate(calls):
        places[call.session].append(place)
    return {place: calls[after].began_ns for each in places.values() for place, after in pairwise(each)}


def _find_end(call: ModelCall) -> End:
    if call.failed:
        return "failed"
    if _has_any(call.reasons, _ASKS_TOOLS):
        return "calls"
    return "length" if _has_any(call.reasons, _CUT_OFF) else "answer"


def _has_any(reasons: Iterable[str], wanted: Sequence[str]) -> bool:
    return any(reason in wanted for reason in reasons)
