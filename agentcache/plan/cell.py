"""One point of a plan: a policy, its caches, and how many engines share the traffic; and what came out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """`kv_tokens` and `cpu_tokens` are those of one engine, of which `engines` share the traffic."""

    policy: str
    kv_tokens: int
    cpu_tokens: int = 0
    engines: int = 1

    @property
    def all_tokens(self) -> int:
        """The tokens of all of its caches together."""
        return (self.kv_tokens + self.cpu_tokens) * self.engines


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation of a cell gave; rates are shares of all prompt tokens. None: no job came to its end.

    Job latency goes from the first request to the last reply, without the pauses of people. Beside the hits stand two
    bounds of them: `clairvoyant_hits` in one cache as large as all of the cell's, `endless_hits` in one without end.
    """

    cell: Cell
    jobs: int
    mean_s: float | None
    p90_s: float | None
    ttft_p99_s: float | None
    hit_rate: float
    clairvoyant_hits: float
    endless_hits: float
    problem: str | None = None


def describe_cell(cell: Cell) -> str:
    """Name a cell in a line."""
    host = f" + {cell.cpu_tokens:,} in the CPU cache" if cell.cpu_tokens else ""
    engines = f", {cell.engines} engines" if cell.engines > 1 else ""
    return f"{cell.policy}, {cell.kv_tokens:,} tokens{host}{engines}"


def describe_caches(cell: Cell) -> str:
    """Say how large the caches are, and how many engines have such: what rivals have alike."""
    host = f", and {cell.cpu_tokens:,} in the CPU cache" if cell.cpu_tokens else ""
    engines = f", in each of {cell.engines} engines" if cell.engines > 1 else ""
    return f"{cell.kv_tokens:,} tokens{host}{engines}"
