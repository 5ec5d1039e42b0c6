"""One point of a plan: a policy, its caches, and how many engines share the traffic; and what came out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """`kv_tokens` and `cpu_tokens` are those of one engine. Each of `engines` serves every so many-th job."""

    policy: str
    kv_tokens: int
    cpu_tokens: int = 0
    engines: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation of a cell gave; rates are shares of all prompt tokens. None: no job came to its end.

    Job latency goes from the first request to the last reply, without the pauses of people.
    """

    cell: Cell
    jobs: int
    mean_s: float | None
    p90_s: float | None
    ttft_p99_s: float | None
    hit_rate: float
    most_hits: float
    problem: str | None = None
