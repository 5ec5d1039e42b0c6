"""Bounds what caches can hit, by arithmetic over recorded blocks: one without end, and one with a clairvoyant evictor.

Requests are taken to come one at a time, in the recorded order. docs/belady-cost.md says what that bounds, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

from tool_runtime.agent.job import Context, Job


@dataclass(frozen=True, slots=True)
class Reuse:
    """Which tokens requests repeat, in the order in which they came.

    `repeats` has for each request, by the number of a later one, how many tokens of the later prompt no other needed
    in between. `endless_tokens` of the `prompt_tokens` hit in a cache without end.
    """

    repeats: Sequence[Mapping[int, int]]
    prompt_tokens: int
    endless_tokens: int

    @property
    def endless_hits(self) -> float:
        """Return the largest share of prompt tokens that can hit."""
        return self._share(self.endless_tokens)

    def bound_hits(self, cache_tokens: int) -> float:
        """Return the largest share of prompt tokens that can hit in `cache_tokens`, whatever is evicted.

        This is Belady's MIN: what is wanted last goes first (L. A. Belady, IBM Systems Journal 5(2), 1966). Nothing
        has to be kept, running requests hold nothing, and a token needs none before it.
        """
        kept = [0] * len(self.repeats)
        wanted: list[int] = []
        held = hits = 0
        for number, repeats in enumerate(self.repeats):
            hits += kept[number]
            held -= kept[number]
            for later, tokens in repeats.items():
                if not kept[later]:
                    heappush(wanted, -later)
                kept[later] += tokens
                held += tokens
            while held > cache_tokens:
                last = -wanted[0]
                lost = min(kept[last], held - cache_tokens)
                kept[last] -= lost
                held -= lost
                if not kept[last]:
                    heappop(wanted)
        # Without whole blocks, more may be kept than can hit.
        return self._share(min(hits, self.endless_tokens))

    def _share(self, tokens: int) -> float:
        return tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class _Request:
    """A request needs the first `asked` tokens of `blocks` from the cache, and leaves the first `made` behind."""

    blocks: tuple[int, ...]
    block_tokens: int
    asked: int
    made: int


def find_reuse(jobs: Sequence[Job], block_tokens: int) -> Reuse:
    """Find what requests of all jobs repeat of each other, in the cache's blocks of `block_tokens`.

    A reply is repeated by the turn after it, where that goes on with it. A prompt's last token is always computed.
    """
    turns = [turn for job in jobs for each in job.family for turn in _list_turns(each)]
    turns.sort(key=lambda turn: turn[0].came_s)
    requests = [_make_request(context, following, block_tokens) for context, following in turns]
    cuts = _find_cuts(requests)
    repeats: list[Counter[int]] = [Counter() for _ in requests]
    latest: dict[tuple[int, int], int] = {}
    endless = 0
    for number, request in enumerate(requests):
        repeated = 0
        for begin, piece, tokens in _list_pieces(request, cuts):
            if begin < request.asked and (before := latest.get(piece)) is not None:
                repeats[before][number] += tokens
                repeated += tokens
            latest[piece] = number
        endless += repeated // block_tokens * block_tokens
    return Reuse(repeats, sum(context.tokens for context, _ in turns), endless)


def _list_turns(job: Job) -> Iterator[tuple[Context, Context | None]]:
    """List the contexts of a job, each with the one after it."""
    contexts = [turn.context for turn in job.turns if turn.context is not None]
    following: list[Context | None] = [*contexts[1:], None]
    return zip(contexts, following, strict=False)


def _make_request(context: Context, following: Context | None, block_tokens: int) -> _Request:
    blocks, made = context.blocks, context.tokens
    if following is not None and following.tokens > made and following.blocks[: len(blocks)] == blocks:
        # The last token of a reply is never fed back.
        blocks, made = following.blocks, min(made + context.reply_tokens - 1, following.tokens)
    asked = context.tokens - 1
    return _Request(blocks, context.block_tokens, _floor(asked, block_tokens), _floor(made, block_tokens))


def _floor(tokens: int, block_tokens: int) -> int:
    return tokens // block_tokens * block_tokens


def _find_cuts(requests: Sequence[_Request]) -> dict[int, list[int]]:
    """Find where recorded blocks are to be cut, so that each request needs or leaves a piece whole or not at all."""
    found: dict[int, set[int]] = {}
    for request in requests:
        for end in (request.asked, request.made):
            block, cut = divmod(end, request.block_tokens)
            if cut:
                found.setdefault(request.blocks[block], set()).add(cut)
    return {block: sorted(cuts) for block, cuts in found.items()}


def _list_pieces(request: _Request, cuts: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, tuple[int, int], int]]:
    """List the pieces that a request leaves: each with where it begins in the prompt, its name, and its tokens."""
    size = request.block_tokens
    for block, start in zip(request.blocks, range(0, request.made, size), strict=False):
        for begin, end in pairwise((0, *cuts.get(block, ()), size)):
            if start + begin < request.made:
                yield start + begin, (block, begin), end - begin
