"""Makes lines of a recording of traced requests and tools, by their sizes and times."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path

from workloads.recording.line import VERSION, End, Header, Line
from workloads.recording.span_calls import ModelCall, read_calls

ASSUMPTION = (
    "Sizes and times are of OpenTelemetry's spans, which do not tell what repeats what: each prompt is taken to extend "
    "the prompt and reply before it in its conversation where it is long enough, else that prompt alone, else nothing. "
    "Conversations are taken to share nothing, so hits are understated where they share a system prompt."
)
_BLOCK_TOKENS = 512
_ASKS_TOOLS = {"tool_call", "tool_calls", "tool_use", "function_call"}
_CUT_OFF = {"length", "max_tokens", "max_output_tokens"}
# Of a reply that asks for tools whose runs were not traced.
_UNTRACED = "(untraced)"


def read_traced(path: Path, broken: list[str]) -> tuple[Header, list[Line], list[str]]:
    """Read a file of spans: a recording's header, its lines in the order in which requests came, and what is left out.

    Raises InputError for a file without any call of a model.
    """
    calls, left_out = read_calls(path, broken)
    first_ns = calls[0].began_ns
    header = Header(
        version=VERSION,
        id="spans",
        block_tokens=_BLOCK_TOKENS,
        model=calls[0].model,
        policy="not known",
        started_at=datetime.fromtimestamp(first_ns / 1e9, UTC).isoformat(timespec="seconds"),
    )
    tracer = _Tracer(first_ns)
    lines = [tracer.make_line(call) for call in calls]
    if tracer.shorter:
        left_out.append(
            f"Prompts shorter than every prompt before them in their conversation, taken to repeat nothing: "
            f"{tracer.shorter} of {len(calls)}. If the spans leave out cached tokens, have them record these, too."
        )
    return header, lines, left_out


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
    def __init__(self, first_ns: int) -> None:
        self._first_ns = first_ns
        self._ids = count()
        self._threads: dict[tuple[str, str | None], list[_Thread]] = defaultdict(list)
        self.shorter = 0
        """Prompts that no idle thread's prompt fits in."""

    def make_line(self, call: ModelCall) -> Line:
        """Make the line of a request; they come in the order in which they began."""
        hash_ids, reply_ids = self._name_blocks(call)
        end = _find_end(call)
        called = [] if end == "failed" else call.called
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
        known = thread.count_repeated(call.input_tokens)
        self.shorter += not known and thread.prompt > 0
        repeated = known // _BLOCK_TOKENS
        thread.ended_ns, thread.prompt = call.ended_ns, call.input_tokens
        thread.known = call.input_tokens + call.output_tokens
        full, blocks = thread.known // _BLOCK_TOKENS, -(-call.input_tokens // _BLOCK_TOKENS)
        thread.blocks = [*thread.blocks[:repeated], *islice(self._ids, full - repeated)]
        # One in part has an id that nothing else has.
        in_part = islice(self._ids, max(0, blocks - full))
        return [*thread.blocks[:blocks], *in_part], thread.blocks[blocks:]

    def _find_thread(self, call: ModelCall) -> _Thread:
        """Find its agent's idle thread that the prompt repeats most of, a new one where all are busy."""
        threads = self._threads[call.session, call.agent]
        idle = [thread for thread in threads if thread.ended_ns <= call.began_ns]
        if not idle:
            threads.append(_Thread())
            return threads[-1]
        return max(idle, key=lambda thread: thread.count_repeated(call.input_tokens))


def _find_end(call: ModelCall) -> End:
    if call.failed:
        return "failed"
    if "abort" in call.reasons:
        return "aborted"
    if _ASKS_TOOLS.intersection(call.reasons):
        return "calls"
    return "length" if _CUT_OFF.intersection(call.reasons) else "answer"
