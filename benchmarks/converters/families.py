"""Draws sessions of coding agents with sub-agents, bursts, compaction and people who pause, by published figures.

What is published (vLLM's blog on AgentX, 2026-09-08; llm-d's agentic guide for GLM-5.2; Claude Code's issue 94197) is
the default of `FamilyLaw`; what is ours is said there. docs/recording.md has a source for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path

import numpy as np

from agentcache.errors import InputError
from converters.family_lines import Agent, Request, list_family_lines
from converters.recorded import write_lines
from workloads.pacing import ToolLatency

# Tokens of a recorded block: a prompt ends within the last.
_BLOCK = 64
# The share of a normal law's standard deviations at which it has 90 %.
_P90 = 1.2816
# Replies of this many tokens a second, behind so many seconds, as a recording of a quiet server would have them.
_TOKENS_A_SECOND = 60.0
_FIRST_TOKEN_S = 0.3
# What a launch that is not waited for takes.
_LAUNCH_S = 0.1


@dataclass(frozen=True, slots=True)
class FamilyLaw:
    """What sessions are drawn by: medians of log-normal laws, means and shares. Sizes are in tokens.

    Published: of all sessions `children_share` have sub-agents, `children` of them in the median; requests come in
    bursts of `burst` in the median and `burst_p90` at the 90th percentile; a person's pause has the median `pause_s`.

    Ours: a session with sub-agents has `bursts` on average, and each session `people` pauses. `forks` of the groups
    begin with all of their parent's context, others with its system prompt and tools, `head`. The share `background` of
    the groups runs in the background, where no agent waits for them. Sizes and turns are the published ones (43 turns
    of 142,000 tokens), made smaller so that a cache of 500,000 tokens holds some tens of sessions. Beyond `limit`
    tokens a context is compacted: a call that repeats all of it writes `summary` tokens, and the session goes on from
    these.
    """

    children_share: float = 0.44
    children: float = 4.0
    bursts: float = 2.5
    burst: float = 7.0
    burst_p90: float = 51.0
    forks: float = 0.25
    background: float = 0.2
    turns: float = 24.0
    child_turns: float = 4.0
    people: float = 1.0
    pause_s: float = 96.0
    max_pause_s: float = 900.0
    head: int = 6000
    asked: float = 1200.0
    result: float = 1000.0
    reply: float = 150.0
    limit: int = 40_000
    summary: int = 2000

    def check(self) -> None:
        """Raise InputError for what cannot be drawn, by the name of its option."""
        for each in fields(self):
            value, flag = getattr(self, each.name), "--" + each.name.replace("_", "-")
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{flag} {value:g}: give a number, 0 or more")
            if each.name in ("children_share", "forks", "background") and value > 1:
                raise InputError(f"{flag} {value:g}: give a share, 0 to 1")
            if each.name in ("burst", "children", "turns", "child_turns", "reply", "head") and value < 1:
                raise InputError(f"{flag} {value:g}: give at least 1")
        if self.limit < 2 * (self.head + self.summary):
            raise InputError(f"--limit {self.limit}: give at least twice --head and --summary together")
        if self.burst_p90 < self.burst:
            raise InputError(f"--burst-p90 {self.burst_p90:g}: give at least --burst, {self.burst:g}")


def convert(out: Path, *, arrivals: Sequence[float], law: FamilyLaw, tool: ToolLatency, seed: int) -> None:
    """Write a recording of a session for each arrival, in seconds. Session n is the same for every number above n."""
    law.check()
    lines = []
    for number, session_seed in enumerate(np.random.SeedSequence(seed).spawn(len(arrivals))):
        agents = _Session(law, tool, np.random.default_rng(session_seed), number).draw()
        lines += list_family_lines(f"family-{number}", arrivals[number], agents)
    write_lines(out, lines, kind="families", block_tokens=_BLOCK)


@dataclass(slots=True)
class _Context:
    """A prompt as it grows: its blocks, the last one perhaps in part."""

    ids: Iterator[int]
    tokens: int
    blocks: list[int]

    def grow(self, tokens: int) -> None:
        self.tokens += tokens
        while len(self.blocks) * _BLOCK < self.tokens:
            self.blocks.append(next(self.ids))

    def fork(self) -> _Context:
        """Return what another agent goes on from: all full blocks are shared."""
        full = self.tokens // _BLOCK
        forked = _Context(self.ids, full * _BLOCK, self.blocks[:full])
        forked.grow(self.tokens - forked.tokens)
        return forked

    def ask(self, reply_tokens: int, *, wait_s: float, called: Sequence[str]) -> Request:
        """Make the request with all of it, and take the reply in."""
        tokens, of_prompt = self.tokens, len(self.blocks)
        self.grow(reply_tokens)
        return Request(
            tokens=tokens,
            reply_tokens=reply_tokens,
            blocks=self.blocks[:of_prompt],
            reply_blocks=self.blocks[of_prompt : self.tokens // _BLOCK],
            took_s=_FIRST_TOKEN_S + reply_tokens / _TOKENS_A_SECOND,
            wait_s=wait_s,
            called=called,
        )


@dataclass(frozen=True, slots=True)
class _Group:
    """Sub-agents that begin together; `turns` of each, all 1 in a burst."""

    turns: Sequence[int]
    is_awaited: bool


@dataclass(slots=True)
class _Session:
    law: FamilyLaw
    tool: ToolLatency
    rng: np.random.Generator
    number: int
    agents: list[Agent] = field(default_factory=list)

    def draw(self) -> list[Agent]:
        """Draw the main agent and then its sub-agents."""
        turns = self._draw_number(self.law.turns, 0.7, least=2, most=8 * self.law.turns)
        places = self.rng.permutation(turns - 1).tolist()
        groups = {places.pop(): group for group in self._draw_groups() if places}
        pauses = {places.pop() for _ in range(self.rng.poisson(self.law.people)) if places}
        requests: list[Request] = []
        context = self._begin(self._count_ids())
        for turn in range(turns):
            requests.append(self._ask(context, turn, is_last=turn == turns - 1, groups=groups, pauses=pauses))
            if turn in groups:
                self._begin_group(groups[turn], len(requests) - 1, context)
            context.grow(self._draw_size(self.law.asked if turn in pauses else self.law.result))
            if context.tokens > self.law.limit and turn < turns - 1:
                requests.append(context.ask(self.law.summary, wait_s=0.0, called=()))
                context = self._begin(context.ids, self.law.summary)
        return [Agent(requests), *self.agents]

    def _count_ids(self) -> Iterator[int]:
        """Count ids of blocks that no other session has, behind those of the head."""
        return count(2**32 * (1 + self.number))

    def _begin(self, ids: Iterator[int], tokens: int | None = None) -> _Context:
        """Begin a context with the head, whose full blocks all sessions share, and `tokens`, else a question."""
        full = self.law.head // _BLOCK
        context = _Context(ids, full * _BLOCK, [*range(1, full + 1)])
        context.grow(self.law.head % _BLOCK + (self._draw_size(self.law.asked) if tokens is None else tokens))
        return context

    def _ask(
        self, context: _Context, turn: int, *, is_last: bool, groups: dict[int, _Group], pauses: set[int]
    ) -> Request:
        reply = self._draw_size(self.law.reply)
        if is_last:
            return context.ask(reply, wait_s=0.0, called=())
        if turn in pauses:
            pause_s = self.law.pause_s * self.rng.lognormal(0.0, 1.0)
            return context.ask(reply, wait_s=min(pause_s, self.law.max_pause_s), called=())
        if turn in groups:
            return context.ask(reply, wait_s=_LAUNCH_S, called=("agent",))
        return context.ask(reply, wait_s=self.tool(self.rng), called=("tool",))

    def _draw_groups(self) -> Iterator[_Group]:
        """Draw the groups of sub-agents, and bursts of single requests."""
        law = self.law
        if self.rng.random() >= law.children_share:
            return
        left = self._draw_number(law.children, 0.8, least=1, most=16 * law.children)
        while left:
            size = int(self.rng.integers(1, left, endpoint=True))
            left -= size
            turns = [self._draw_number(law.child_turns, 0.6, least=1, most=8 * law.child_turns) for _ in range(size)]
            yield _Group(turns, bool(self.rng.random() >= law.background))
        deviation = math.log(law.burst_p90 / law.burst) / _P90
        for _ in range(self.rng.poisson(law.bursts)):
            size = self._draw_number(law.burst, deviation, least=2, most=2 * law.burst_p90)
            yield _Group([1] * size, bool(self.rng.random() >= law.background))

    def _begin_group(self, group: _Group, behind: int, parent: _Context) -> None:
        is_fork = self.rng.random() < self.law.forks
        for turns in group.turns:
            context = parent.fork() if is_fork else self._begin(parent.ids, 0)
            context.grow(self._draw_size(self.law.asked))
            requests = []
            for turn in range(turns):
                requests.append(self._ask(context, turn, is_last=turn == turns - 1, groups={}, pauses=set()))
                context.grow(self._draw_size(self.law.result))
            name = f"agent-{len(self.agents) + 1}"
            self.agents.append(Agent(requests, name, behind=behind, is_awaited=group.is_awaited))

    def _draw_size(self, median: float) -> int:
        return max(1, round(median * self.rng.lognormal(0.0, 0.9)))

    def _draw_number(self, median: float, deviation: float, *, least: int, most: float) -> int:
        return int(min(max(least, round(median * self.rng.lognormal(0.0, deviation))), max(least, most)))
