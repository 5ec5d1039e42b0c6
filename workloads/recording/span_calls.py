"""Makes requests of spans: one each, with its session and its tools, however many layers of a program traced it.

Sizes are of whole prompts, also where what the provider had cached was counted apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from pathlib import Path

from agentcache.errors import InputError
from tool_runtime.bounds import MAX_TOKENS
from workloads.loaded import read_lines
from workloads.recording.span_file import CONVENTIONS, NAMES, Span, read_spans

_KINDS: Mapping[str, str] = {each: kind for kind, listed in CONVENTIONS["operations"].items() for each in listed}
# Names that a sentence lists.
_NAMED = 4


@dataclass(slots=True)
class ModelCall:
    """A request to a model. Times are in nanoseconds since 1970. `reasons` are why each choice of the reply ended.

    `agent` is the one of its session that asked, where the spans tell.
    `called` are the tools that began before its session's next request, perhaps while the reply was still streamed.
    """

    session: str
    began_ns: int
    ended_ns: int
    model: str
    input_tokens: int
    output_tokens: int
    reasons: tuple[str, ...]
    failed: bool
    agent: str | None = None
    called: list[str] = field(default_factory=list)


def read_calls(path: Path, broken: list[str]) -> tuple[list[ModelCall], list[str]]:
    """Read a file's requests in the order in which they began, and what is left out, in sentences.

    What is broken is added to `broken`. Raises InputError for a file without any request.
    """
    tree = _Tree(sorted(read_spans(path, broken), key=lambda span: (span.began_ns, -span.ended_ns)))
    unread = len(broken)
    calls = _drop_twins(_drop_retold(tree.make_calls(broken)))
    if not calls:
        raise _refuse(path, tree.kinds, broken)
    tools = tree.add_tools(calls)
    left_out = []
    if others := [span for span, kind in tree.kinds.items() if kind == "other"]:
        left_out.append(f"Spans that are no request and no tool, passed over: {len(others)} ({_list_names(others)}).")
    if again := len(tree.kinds) - len(others) - len(calls) - tools - (len(broken) - unread):
        left_out.append(f"Spans of a request or tool that another span tells of, too, counted once: {again}.")
    return list(calls.values()), left_out


def _refuse(path: Path, spans: Iterable[Span], broken: Sequence[str]) -> InputError:
    """Say what a file without requests holds, and what would help."""
    if broken:
        return InputError(f"{broken[0]}; no request in the file can be read")
    begins = " ".join(next(read_lines(path))[1][:200].decode("utf-8", "replace").split())[:60]
    return InputError(
        f"{path}: is no recording, which has a line of JSON for each request: `agentcache serve MODEL --record FILE` "
        f"writes one. Nor has it a span of a request with {NAMES['input'][0]} and {NAMES['output'][0]} or such, but "
        f"{_list_names(spans) or f'what begins {begins}'}; trace the model's client and export JSON, or convert a "
        "benchmark's file by `python benchmarks/convert.py`"
    )


def _list_names(spans: Iterable[Span]) -> str:
    counts = Counter(span.name.partition(" ")[0][:40] for span in spans).most_common()
    return ", ".join([f"{name} {number}" for name, number in counts[:_NAMED]] + ["others"] * (len(counts) > _NAMED))


def _find_kind(span: Span) -> str:
    """Tell a request and a tool from other spans, by what it says it is, else by what it has."""
    operation = str(span.said.get("operation")).rpartition(".")[2].lower()
    return _KINDS.get(operation) or ("request" if _has_sizes(span) else "tool" if "tool" in span.said else "other")


def _has_sizes(span: Span) -> bool:
    return "input" in span.said and "output" in span.said


class _Tree:
    """Spans in the order in which they began, each with its kind and what it is inside of, from the innermost on."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.kinds = {span: _find_kind(span) for span in spans}
        by_id = {(span.trace, span.id): span for span in spans if span.id}
        self._around = {span: list(_climb(span, by_id)) for span in spans}

    def make_calls(self, broken: list[str]) -> dict[Span, ModelCall]:
        """Make the requests. Of each that several layers traced, the innermost that has its sizes tells of it."""
        layers = {span: {*self._list_near(span)} for span, kind in self.kinds.items() if kind == "request"}
        sized = {span for span in layers if _has_sizes(span)}
        told = {layer for span in sized for layer in layers[span]}
        # Who once counts a prompt shorter than what of it was cached counts that apart, always.
        apart = {_find_writer(span) for span in sized - told if _count_cached(span) > span.said["input"]}
        calls = {}
        for span in (span for span in layers if span not in told and not (span not in sized and sized & layers[span])):
            missing = next((NAMES[size][0] for size in ("input", "output") if size not in span.said), None)
            tokens = span.said.get("input", 0) + _count_cached(span) * (_find_writer(span) in apart)
            if missing is not None:
                broken.append(f"{span.place}: {missing}: is missing; the instrumentation must record it")
            elif not 1 <= tokens <= MAX_TOKENS:
                broken.append(f"{span.place}: {NAMES['input'][0]}: {tokens} are no prompt")
            else:
                agent = next(self._find_names("agent", span), None)
                calls[span] = _make_call(span, self._find_session(span), agent, tokens)
        return calls

    def _list_near(self, span: Span) -> list[Span]:
        """List what a span is inside of, up to a tool: what is around that, as around a sub-agent, is another's."""
        return [*takewhile(lambda outer: self.kinds[outer] != "tool", self._around[span])]

    def _find_session(self, span: Span) -> str:
        """Return the conversation that the span or what it is inside of names, or else session, or its trace."""
        names = chain(self._find_names("conversation", span), self._find_names("session", span))
        return next(names, span.trace)

    def _find_names(self, what: str, span: Span) -> Iterator[str]:
        return (str(each.said[what]) for each in (span, *self._around[span]) if each.said.get(what))

    def add_tools(self, calls: Mapping[Span, ModelCall]) -> int:
        """Add each tool to its request: the latest of the session of those beside it. Returns how many there are.

        One of the same name inside of another is that one.
        """
        beside: dict[tuple[str, str], set[str]] = defaultdict(set)
        of_session: dict[str, list[ModelCall]] = defaultdict(list)
        for span, call in calls.items():
            of_session[call.session].append(call)
            for place in self._list_places(span):
                beside[place].add(call.session)
        names = {span: str(span.said.get("tool") or span.name) for span, kind in self.kinds.items() if kind == "tool"}
        own = [span for span, name in names.items() if name not in {names.get(outer) for outer in self._around[span]}]
        for span in own:
            found = next((beside[place] for place in self._list_places(span) if place in beside), set())
            session = of_session.get(next(iter(found)) if len(found) == 1 else self._find_session(span), [])
            if before := bisect_right(session, span.began_ns, key=lambda call: call.began_ns):
                session[before - 1].called.append(names[span])
        return len(own)

    def _list_places(self, span: Span) -> list[tuple[str, str]]:
        """List where a span is, from itself on: in other spans, and last, if in no tool, in its trace."""
        near = self._list_near(span)
        places = [(span.trace, each.id) for each in (span, *near)]
        return places if len(near) < len(self._around[span]) else [*places, (span.trace, "")]


def _climb(span: Span, by_id: Mapping[tuple[str, str], Span]) -> Iterator[Span]:
    seen = {span.id}
    while (outer := by_id.get((span.trace, span.parent))) is not None and outer.id not in seen:
        seen.add(outer.id)
        yield outer
        span = outer


def _count_cached(span: Span) -> int:
    return sum(span.said.get(size, 0) for size in ("cache read", "cache written"))


def _find_writer(span: Span) -> tuple[str, str]:
    return span.said["scope"], str(span.said.get("provider"))


def _make_call(span: Span, session: str, agent: str | None, prompt: int) -> ModelCall:
    reasons = span.said.get("reasons", ())
    if not isinstance(reasons, list):  # A word, or, of Jaeger, JSON of a list.
        reasons = str(reasons).strip('[]"').split('","')
    words = tuple(str(reason).rpartition(".")[2].lower().replace("-", "_") for reason in reasons)
    model = str(span.said.get("model") or "unknown")
    sizes = prompt, span.said["output"]
    return ModelCall(session, span.began_ns, span.ended_ns, model, *sizes, words, span.failed, agent)


def _drop_retold(calls: Mapping[Span, ModelCall]) -> dict[Span, ModelCall]:
    """Keep one span of each reply by its id, as of a client and its server: the first that names a conversation."""
    kept: dict[tuple[str, int, int], Span] = {}
    for span in sorted(calls, key=lambda span: "conversation" not in span.said):
        if reply := span.said.get("reply"):
            kept.setdefault((str(reply), calls[span].input_tokens, calls[span].output_tokens), span)
    first = {*kept.values()}
    return {span: call for span, call in calls.items() if span in first or not span.said.get("reply")}


def _drop_twins(calls: Mapping[Span, ModelCall]) -> dict[Span, ModelCall]:
    """Drop a client's span within the time of a framework's of the same sizes, though that is not its parent."""
    kept: dict[Span, ModelCall] = {}
    alike: dict[tuple[str, int, int], list[Span]] = defaultdict(list)
    for span, call in calls.items():
        same = alike[span.trace, call.input_tokens, call.output_tokens]
        framework = (
            each for each in same if each.said["scope"] != span.said["scope"] and span.ended_ns <= each.ended_ns
        )
        if (outer := next(framework, None)) is not None:
            same.remove(outer)
        else:
            same.append(span)
            kept[span] = call
    return kept
