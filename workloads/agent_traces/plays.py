"""Sessions without end: recorded ones in an order that the seed gives, again and again, with blocks of their own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tool_runtime.agent.job import Context, Job, ToolResult, Turn

# The share of its turns that lies behind a session which is under way when a run begins.
START_SHARES = (0.25, 0.75)


@dataclass(frozen=True, slots=True)
class MidwaySession:
    """A session that is entered midway. Its first `warm_up` requests have replies of one token and no waits between."""

    job: Job
    warm_up: int


class SessionPlays:
    """Plays of sessions, numbered from 0. Only `shared_blocks`, the heads of prompts, are the same in two plays.

    So no play finds what an earlier one of the same session left in the cache, but for the head that all sessions with
    its length share.
    """

    def __init__(self, sessions: Sequence[Job], shared_blocks: Collection[int], seed: int) -> None:
        self._sessions = sessions
        self._shared = frozenset(shared_blocks)
        self._seed = seed
        blocks = (block for job in sessions for turn in job.turns for block in _context(turn).blocks)
        self._numbers = max(blocks, default=-1) + 1

    def play(self, number: int) -> Job:
        """Return a play: every session once before any is played again, each round in an order of its own."""
        round_number, place = divmod(number, len(self._sessions))
        order = np.random.default_rng([self._seed, round_number]).permutation(len(self._sessions))
        job = self._sessions[int(order[place])]
        if not round_number:
            return job
        turns = (replace(turn, context=self._renumber(_context(turn), round_number)) for turn in job.turns)
        return replace(job, id=f"{job.id}-again-{round_number}", turns=tuple(turns))

    def play_midway(self, number: int, warm_up: int) -> MidwaySession:
        """Return a play that begins between a quarter and three quarters of its turns.

        A request that fills the cache and `warm_up` more come before the recorded turns go on; fewer where the session
        would be over, so that at least one turn remains.
        """
        job = self.play(number)
        share = np.random.default_rng([self._seed, number, 1]).uniform(*START_SHARES)
        first = min(int(share * len(job.turns)), len(job.turns) - 1)
        warm = min(1 + warm_up, len(job.turns) - 1 - first)
        turns = list(job.turns[first:])
        for index in range(warm):
            turns[index] = _hasten(turns[index], waits=index == warm - 1)
        return MidwaySession(replace(job, turns=tuple(turns)), warm)

    def _renumber(self, context: Context, round_number: int) -> Context:
        shift = self._numbers * round_number
        blocks = (block if block in self._shared else block + shift for block in context.blocks)
        return replace(context, blocks=tuple(blocks))


def _context(turn: Turn) -> Context:
    assert turn.context is not None
    return turn.context


def _hasten(turn: Turn, *, waits: bool) -> Turn:
    turn = replace(turn, context=replace(_context(turn), reply_tokens=1))
    if waits:
        return turn
    return replace(turn, results=tuple(ToolResult(result.content, 0.0) for result in turn.results), pause_s=0.0)
