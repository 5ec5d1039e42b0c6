"""Draws the times of chats that were recorded without any: arrivals, seconds of tool calls, pauses of users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tool_runtime.agent.job import Job, Turn
from workloads.pacing import ToolLatency


@dataclass(frozen=True, slots=True)
class Pace:
    """`arrivals` gives so many times in seconds; `tool` and `user` draw the seconds of a call and of a pause."""

    arrivals: Callable[[int], Sequence[float]]
    tool: ToolLatency
    user: ToolLatency
    seed: int


def user_pause(mean_s: float, cv: float) -> ToolLatency:
    """Make the law of a user's pauses: Gamma, by its mean in seconds and its coefficient of variation.

    Conversations about documents draw theirs from the same law.
    """
    return lambda rng: float(rng.gamma(1 / cv**2, cv**2 * mean_s))


def pace_jobs(jobs: Sequence[Job], pace: Pace) -> list[Job]:
    """Give the jobs arrivals, their calls durations, and a pause to each turn behind which something was said.

    Job n is the same for every number of jobs above n.
    """
    seeds = np.random.SeedSequence(pace.seed).spawn(len(jobs))
    return [
        replace(job, arrival_s=arrival_s, turns=_pace_turns(job.turns, pace, np.random.default_rng(seed)))
        for job, arrival_s, seed in zip(jobs, pace.arrivals(len(jobs)), seeds, strict=True)
    ]


def _pace_turns(turns: Sequence[Turn], pace: Pace, rng: np.random.Generator) -> tuple[Turn, ...]:
    return tuple(
        replace(
            turn,
            results=tuple(replace(result, duration_s=pace.tool(rng)) for result in turn.results),
            pause_s=pace.user(rng) if turn.said else 0.0,
        )
        for turn in turns
    )
