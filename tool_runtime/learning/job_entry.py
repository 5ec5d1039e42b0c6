"""Holds what the table knows of each job, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tool_runtime.learning.tool_key import ToolKey


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
class JobEntry:
    """The table's record of one job. It belongs to the table: read it, do not write it.

    `session` is the job's name in the table, `client_session` what its client calls it: several tenants may use one
    name, and have a job each. `number` is no other job's of the table's, ever. `turns` counts the requests that
    finished, `calls` the tool calls they are known to have made, `failures` those that came to nothing; `prompt_tokens`
    are those of the last that finished. `running` maps requests to their arrival, `pending` finished requests to what
    they wait for, oldest first.
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


@dataclass(frozen=True, slots=True)
class Departed:
    """A job that left the table, and how long the turns that nothing had continued waited until then."""

    job: JobEntry
    cause: Departure
    unanswered: tuple[Gap, ...]
