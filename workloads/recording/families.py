"""Finds the families of a recording: behind which request of which other thread of its session a sub-agent began.

One rule: the parent that a named thread tells of must have had a reply when the thread began. If it had none, is not
known or is the thread itself, the thread is the main one of a family of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from workloads.recording.line import Line
from workloads.recording.threads import Thread


@dataclass(slots=True, eq=False)
class Member:
    """A thread of a family, of which `requests` are kept; it began behind request `place` of its `parent`.

    `name` is its own in the family. `resumed_ms` has, by the place of a request, when all had ended for which the
    thread waited before its next one.
    """

    thread: Thread
    requests: Sequence[Line]
    parent: Member | None = None
    place: int = 0
    name: str | None = None
    family: list[Member] = field(default_factory=list)
    resumed_ms: dict[int, float] = field(default_factory=dict)

    @property
    def is_awaited(self) -> bool:
        """Tell whether the parent's next request waited for the thread's last reply."""
        if self.parent is None or self.place + 1 >= len(self.parent.requests):
            return False
        return self.parent.requests[self.place + 1].timestamp >= self.thread.ended_ms


def find_families(threads: Sequence[Thread], max_context: int | None) -> list[list[Member]]:
    """Find the families, each with its main thread first. `threads` are in the order in which they began.

    A thread ends before its first request with more than `max_context` tokens; what began behind that is left out.
    """
    families: list[list[Member]] = []
    # Requests of one agent that overlap make several threads.
    agents: defaultdict[tuple[str | None, str | None], list[Member]] = defaultdict(list)
    for thread in threads:
        member = Member(thread, _cut(thread.requests, max_context))
        if thread.session is not None and thread.name is not None:
            _find_parent(member, agents[thread.session, thread.requests[0].parent])
        agents[thread.session, thread.name].append(member)
        if not member.requests:
            continue
        if member.parent is None:
            families.append(member.family)
        elif not member.parent.family or member.place >= len(member.parent.requests):
            continue
        _join(member)
    return families


def _find_parent(member: Member, agents: Sequence[Member]) -> None:
    """Find the one of these that had the latest reply when the member began, if any had one."""
    began_ms, latest_ms = member.thread.requests[0].timestamp, -1.0
    for agent in agents:
        ended = agent.thread.count_ended(began_ms)
        if ended and (ended_ms := agent.thread.requests[ended - 1].ended_ms) > latest_ms:
            member.parent, member.place, latest_ms = agent, ended - 1, ended_ms


def _join(member: Member) -> None:
    """Join the parent's family, or begin one."""
    if (parent := member.parent) is not None:
        member.family = parent.family
        if member.is_awaited:
            before_ms = parent.resumed_ms.get(member.place, 0.0)
            parent.resumed_ms[member.place] = max(before_ms, member.thread.ended_ms)
    if member.thread.name is not None:
        member.name = f"{member.thread.name}-{len(member.family)}"
    member.family.append(member)


def _cut(requests: Sequence[Line], max_context: int | None) -> Sequence[Line]:
    if max_context is None:
        return requests
    sizes = [request.input_length + request.output_length for request in requests]
    return requests[: next((place for place, tokens in enumerate(sizes) if tokens > max_context), len(sizes))]
