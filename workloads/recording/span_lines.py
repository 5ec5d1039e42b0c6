"""Lines of a recording, made of OpenTelemetry's spans: these have sizes and times, but do not tell what repeats what.

So that is taken to be as with agents that append: a call's prompt begins with the prompt and the reply before it in its
session, as far as it is long enough; sessions share nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice, pairwise
from pathlib import Path

from agentcache.errors import InputError
from workloads.recording.line import VERSION, End, Header, Line
from workloads.recording.spans import ModelCall, ToolRun, read_spans

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
