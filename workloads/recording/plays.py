"""Sessions without end: recorded ones in an order that the seed gives, again and again, with blocks of their own.

A rollout plays each in a group of samples, one behind the other, which have their first prompt in common.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tool_runtime.agent.job import Context, Job, ToolResult, Turn
from workloads.recording.sessions import find_session

# The share of its turns that lies behind a session which is under way when a run begins.
START_SHARES = (0.25, 0.75)
# More than a run has: the rounds of the next copy are numbered behind them.
_MOST_ROUNDS = 100_000
# Ids have 63 bits. Multiples of the golden ratio's share of them lie far apart, so rounds do not meet.
_IDS = 2**63
_APART = 0x4F1BBCDCBFA53E0B
# The same for samples, of another irrational: the square root of 2, without its whole part.
_SAMPLES_APART = 0x3504F333F9DE6485


@dataclass(frozen=True, slots=True)
class MidwaySession:
    """A session that is entered midway. Its first `warm_up` requests have replies of one token and no waits between."""

    job: Job
    warm_up: int


class SessionPlays:
    """Plays of sessions, numbered from 0. Only `shared_blocks`, such as of system prompts, are the same in two plays.

    So no play finds what an earlier one of the same session left in the cache, but for what other sessions share. Nor
    does a play of one `copy` find what those of another left.

    With several `samples`, so many plays in a row are of one session. These have the full blocks of its first prompt
    in common as well.
    """

    def __init__(
        self, sessions: Sequence[Job], shared_blocks: Collection[int], seed: int, copy: int = 0, samples: int = 1
    ) -> None:
        self._sessions = sessions
        self._shared = shared_blocks
        self._seed = seed
        self._copy = copy
        self._samples = samples

    def take_copy(self, copy: int) -> SessionPlays:
        """Return the plays of the same sessions, in the same order, as another copy."""
        return SessionPlays(self._sessions, self._shared, self._seed, copy, self._samples)

    def play(self, number: int) -> Job:
        """Return a play: every session once (by all samples) before any comes again, each round in its own order."""
        group, sample = divmod(number, self._samples)
        round_number, place = divmod(group, len(self._sessions))
        order = np.random.default_rng([self._seed, round_number]).permutation(len(self._sessions))
        # A lane begins it when it is free, whenever it came in the recording.
        job = replace(self._sessions[int(order[place])], arrival_s=0.0)
        version = self._copy * _MOST_ROUNDS + round_number
        if not (version or sample):
            return job
        again = f"-again-{round_number}" if round_number else ""
        copy = f"-copy-{self._copy}" if self._copy else ""
        apart = f"-sample-{sample}" if sample else ""
        name, of_group = f"{job.id}{copy}{again}{apart}", _head(_context(job.turns[0]))
        main, *agents = (
            replace(each, id=name, turns=self._renumber_turns(each, version, sample, of_group)) for each in job.family
        )
        return replace(main, agents=tuple(agents))

    def play_midway(self, number: int, warm_up: int) -> MidwaySession:
        """Return a play that begins between a quarter and three quarters of its turns.

        A request that fills the cache and `warm_up` more come before the recorded turns go on; fewer where the session
        would be over, so that at least one turn remains. Sub-agents that began before the last of these are left out.
        """
        job = self.play(number)
        share = np.random.default_rng([self._seed, number, 1]).uniform(*START_SHARES)
        first = min(int(share * len(job.turns)), len(job.turns) - 1)
        warm = min(1 + warm_up, len(job.turns) - 1 - first)
        turns = list(job.turns[first:])
        for index in range(warm):
            turns[index] = _hasten(turns[index], waits=index == warm - 1)
        agents = _list_agents_behind(job, first + max(0, warm - 1), first)
        return MidwaySession(replace(job, turns=tuple(turns), agents=agents), warm)

    def _renumber_turns(self, job: Job, version: int, sample: int, of_group: Collection[int]) -> tuple[Turn, ...]:
        return tuple(
            replace(turn, context=self._renumber(_context(turn), version, sample, of_group)) for turn in job.turns
        )

    def _renumber(self, context: Context, version: int, sample: int, of_group: Collection[int]) -> Context:
        shift = version * _APART
        own = shift + sample * _SAMPLES_APART
        blocks = (
            block if block in self._shared else (block + (shift if block in of_group else own)) % _IDS
            for block in context.blocks
        )
        return replace(context, blocks=tuple(blocks))


def find_shared_blocks(jobs: Iterable[Job]) -> set[int]:
    """Find the blocks that several sessions have; jobs of one session may be its sub-agents."""
    owners: dict[int, str] = {}
    shared: set[int] = set()
    for job in jobs:
        session = find_session(job)
        blocks = {block for each in job.family for turn in each.turns for block in _context(turn).blocks}
        shared.update(block for block in blocks if owners.setdefault(block, session) != session)
    return shared


def _list_agents_behind(job: Job, turn: int, first: int) -> tuple[Job, ...]:
    """List the sub-agents that began behind a turn, or by such; turns are counted from `first` on."""
    kept: dict[str | None, Job] = {}
    for agent in job.agents:
        assert agent.start is not None
        if agent.start.parent == job.thread and agent.start.turn >= turn:
            kept[agent.thread] = replace(agent, start=replace(agent.start, turn=agent.start.turn - first))
        elif agent.start.parent in kept:
            kept[agent.thread] = agent
    return tuple(kept.values())


def _head(context: Context) -> set[int]:
    """Return the full blocks: what follows the prompt in its last one is the sample's own."""
    return set(context.blocks[: context.tokens // context.block_tokens])


def _context(turn: Turn) -> Context:
    assert turn.context is not None
    return turn.context


def _hasten(turn: Turn, *, waits: bool) -> Turn:
    turn = replace(turn, context=replace(_context(turn), reply_tokens=1))
    if waits:
        return turn
    return replace(turn, results=tuple(ToolResult(result.content, 0.0) for result in turn.results), pause_s=0.0)
