"""Lays out the requests of a session's agents in time, and writes them as lines of a recording.

Replies take as long as they did, so a reader of the lines finds who waited for whom (docs/recording.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from workloads.recording.line import Line


@dataclass(frozen=True, slots=True)
class Request:
    """Sizes in tokens, and the ids of the prompt's blocks and of those that the reply fills.

    The reply took `took_s`; then the agent waited for sub-agents, if for any, and then `wait_s` more.
    """

    tokens: int
    reply_tokens: int
    blocks: Sequence[int]
    reply_blocks: Sequence[int]
    took_s: float
    wait_s: float
    called: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: the main one, or one that began `delay_s` after request `behind` of the agent numbered `parent`.

    A sub-agent that began behind none, `behind` -1, began `delay_s` after the session.
    """

    requests: Sequence[Request]
    name: str | None = None
    parent: int = 0
    behind: int = -1
    delay_s: float = 0.0
    is_awaited: bool = False


def list_family_lines(session: str, arrival_s: float, agents: Sequence[Agent]) -> list[Line]:
    """List the lines of a session's agents, the main one first, in no order; a parent comes before its sub-agents."""
    return _Layout(session, agents, 1000 * arrival_s).lines


@dataclass(slots=True)
class _Layout:
    session: str
    agents: Sequence[Agent]
    arrival_ms: float
    lines: list[Line] = field(default_factory=list)
    begun: defaultdict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for number, agent in enumerate(self.agents[1:], start=1):
            self.begun[agent.parent, agent.behind].append(number)
        for number in [0, *(number for number, each in enumerate(self.agents) if number and each.behind < 0)]:
            self._play(number, self.arrival_ms + 1000 * self.agents[number].delay_s)

    def _play(self, number: int, came_ms: float) -> float:
        """List an agent's lines and those of all that it begins, and return when its last reply had come."""
        ended_ms = came_ms
        for place, request in enumerate(self.agents[number].requests):
            line = self._make_line(number, request, came_ms)
            self.lines.append(line)
            ended_ms = resumed_ms = line.ended_ms
            for child in self.begun[number, place]:
                child_ms = self._play(child, ended_ms + 1000 * self.agents[child].delay_s)
                if self.agents[child].is_awaited:
                    resumed_ms = max(resumed_ms, child_ms)
            came_ms = resumed_ms + 1000 * request.wait_s
        return ended_ms

    def _make_line(self, number: int, request: Request, came_ms: float) -> Line:
        agent = self.agents[number]
        return Line(
            timestamp=came_ms,
            input_length=request.tokens,
            output_length=request.reply_tokens,
            hash_ids=list(request.blocks),
            reply_ids=list(request.reply_blocks),
            session=self.session,
            thread=agent.name,
            parent=self.agents[agent.parent].name if number else None,
            latency_ms=1000 * request.took_s,
            called=list(request.called),
            end="calls" if request.called else "answer",
        )
