"""Holds what the table knows of each job, as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from tool_runtime.learning.tool_key import HUMAN, ToolKey

AgentState = Literal["running", "waiting", "over"]
# Sub-agents of a job, the latest; of those that are over none is kept before any other.
MAX_AGENTS = 64


class Departure(Enum):
    """Why a job left the table."""

    ENDED = "job over"
    IDLE = "expired"
    CAPACITY = "table full"


@dataclass(frozen=True, slots=True)
class PendingTurn:
    """A finished turn that no request has continued yet. `key` is what the gap behind it is filed under."""

    key: ToolKey
    finished_s: float
    clock_resets: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The turn of `request` waited for `seconds`. Unless `certain`, the duration must train nothing."""

    request: str
    turn: PendingTurn
    seconds: float
    certain: bool


@dataclass(slots=True)
class Agent:
    """A sub-agent of a job; one that the main agent has begun has no `parent`.

    `blocks` is what its client says of whether its parent waits. `running` are its requests in the engine, `turn` is
    the last that finished. Its blocks are its own behind the first `shared_tokens`. `is_over` until it asks again.
    """

    name: str
    parent: str | None
    began_s: float
    blocks: bool | None = None
    turns: int = 0
    running: int = 0
    turn: str = ""
    shared_tokens: int = 0
    is_over: bool = False

    def tell(self) -> dict[str, Any]:
        """Tell what is shown of it."""
        state: AgentState = "running" if self.running else "over" if self.is_over else "waiting"
        return {"state": state, **{name: getattr(self, name) for name in ("name", "parent", "began_s", "turns")}}


@dataclass(slots=True)
class JobEntry:
    """The table's record of one job. It belongs to the table: read it, do not write it.

    `session` is the job's name in the table, `client_session` what its client calls it: several tenants may use one
    name, and have a job each. `number` is no other job's of the table's, ever. `turns` counts the requests that
    finished, `calls` the tool calls they are known to have made, `failures` those that came to nothing; `prompt_tokens`
    are those of the last that finished. `running` maps requests to their arrival, `pending` finished requests to what
    they wait for, oldest first. `agents` are its sub-agents by their names.
    """

    session: str
    arrival_s: float
    last_active_s: float
    number: int
    client_session: str = ""
    turns: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    failures: int = 0
    is_final: bool = False
    running: dict[str, float] = field(default_factory=dict)
    pending: dict[str, PendingTurn] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)

    def find_agent(self, name: str, parent: str | None, now_s: float, *, blocks: bool | None = None) -> Agent:
        """Find the agent that asks now, or begin it. A parent that would close a circle counts for the main agent."""
        if (agent := self.agents.pop(name, None)) is None:
            above = None if name in self._list_above(parent) else parent
            agent = Agent(name, above, now_s)
            if len(self.agents) >= MAX_AGENTS:
                over = (each.name for each in self.agents.values() if each.is_over)
                del self.agents[next(over, next(iter(self.agents)))]
        self.agents[name] = agent
        agent.blocks = agent.blocks if blocks is None else blocks
        agent.running += 1
        agent.is_over = False
        return agent

    def is_awaited(self, agent: Agent) -> bool:
        """Tell whether the main agent waits for this one: its parent has called tools, and so has each parent's."""
        known = (self.agents[name] for name in self._list_above(agent.name) if name in self.agents)
        return all(self._blocks(each) for each in known)

    def end_agent(self, agent: Agent) -> str:
        """Note that nothing goes on from the agent; return its last turn."""
        agent.is_over = True
        self.pending.pop(agent.turn, None)
        return agent.turn

    def end_answered(self, parent: str | None) -> list[Agent]:
        """End the agents that this one has begun, and that have answered, as it has gone on since; return them."""
        ended = [
            agent
            for agent in self.agents.values()
            if agent.parent == parent and not agent.running and not agent.is_over and self._has_answered(agent)
        ]
        for agent in ended:
            self.end_agent(agent)
        return ended

    def _has_answered(self, agent: Agent) -> bool:
        turn = self.pending.get(agent.turn)
        return turn is not None and turn.key == HUMAN

    def _blocks(self, agent: Agent) -> bool:
        if agent.blocks is not None:
            return agent.blocks
        parent = self.agents.get(agent.parent or "")
        if parent is not None:
            turns = [parent.turn]
        else:
            of_agents = {each.turn for each in self.agents.values()}
            turns = [turn for turn in self.pending if turn not in of_agents]
        waits = (turn for name in turns if (turn := self.pending.get(name)) is not None)
        return any(turn.key != HUMAN and turn.finished_s <= agent.began_s for turn in waits)

    def _list_above(self, name: str | None) -> Iterator[str]:
        """List the agent and those above it, up to one that the main agent has begun, or that is not known."""
        while name is not None:
            yield name
            name = self.agents[name].parent if name in self.agents else None


@dataclass(frozen=True, slots=True)
class Departed:
    """A job that left the table, and how long the turns that nothing had continued waited until then."""

    job: JobEntry
    cause: Departure
    unanswered: tuple[Gap, ...]
