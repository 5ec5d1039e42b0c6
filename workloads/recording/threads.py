"""Finds the threads of a recording: requests of one agent that follow each other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from workloads.recording.line import Line


@dataclass(slots=True)
class Thread:
    """Requests one after the other, of the agent `name` where it is told: what overlaps makes a thread of its own."""

    session: str | None
    name: str | None = None
    requests: list[Line] = field(default_factory=list)

    @property
    def ended_ms(self) -> float:
        """When its latest reply was complete."""
        return self.requests[-1].ended_ms

    def count_ended(self, time_ms: float) -> int:
        """Count the requests whose reply was complete by then."""
        return bisect_right(self.requests, time_ms, key=lambda request: request.ended_ms)


def find_threads(requests: Iterable[Line], block_tokens: int) -> list[Thread]:
    """Find the threads, in the order of their beginnings. `requests` are in the order in which they came.

    A request goes on from the thread of its session and agent that is idle and whose blocks it repeats furthest. One
    without a session goes on from the thread whose last full block it repeats.
    """
    finder = _Finder(block_tokens)
    for request in requests:
        finder.add(request)
    return finder.threads


class _Finder:
    def __init__(self, block_tokens: int) -> None:
        self.threads: list[Thread] = []
        self._block_tokens = block_tokens
        self._of_agent: dict[tuple[str, str | None], list[Thread]] = {}
        self._by_end: dict[int, Thread] = {}

    def add(self, request: Line) -> None:
        thread = self._find_nameless(request) if request.session is None else self._find_named(request)
        if thread is None:
            thread = Thread(request.session, request.thread)
            self.threads.append(thread)
            if request.session is not None:
                self._of_agent.setdefault((request.session, request.thread), []).append(thread)
        thread.requests.append(request)
        full = list_full_blocks(request, self._block_tokens)
        if request.session is None and full:
            self._by_end[full[-1]] = thread

    def _find_named(self, request: Line) -> Thread | None:
        assert request.session is not None
        threads = self._of_agent.get((request.session, request.thread), ())
        idle = [thread for thread in threads if thread.ended_ms <= request.timestamp]
        return max(idle, key=lambda thread: _rank(thread, request), default=None)

    def _find_nameless(self, request: Line) -> Thread | None:
        for block in reversed(request.hash_ids[: request.input_length // self._block_tokens]):
            thread = self._by_end.get(block)
            if thread is not None and thread.ended_ms <= request.timestamp:
                return thread
        return None


def list_full_blocks(request: Line, block_tokens: int) -> Sequence[int]:
    """List the blocks that prompt and reply fill, from the first on."""
    return [*request.hash_ids, *request.reply_ids][: (request.input_length + request.output_length) // block_tokens]


def _rank(thread: Thread, request: Line) -> tuple[int, float]:
    latest = thread.requests[-1]
    known = zip([*latest.hash_ids, *latest.reply_ids], request.hash_ids, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], known)), thread.ended_ms
