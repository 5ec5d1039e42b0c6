"""What a cache without end would serve: an upper bound of hits, by arithmetic over the recorded blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from tool_runtime.agent.job import Context, Job


def bound_hits(jobs: Sequence[Job], block_tokens: int) -> float:
    """Return the largest share of prompt tokens that prefix hits can have, in the cache's blocks of `block_tokens`.

    Every block of a request that came before, of any job, is taken to be cached, and so is the reply before a turn,
    where the turn goes on with it. A prompt's last token is always computed.
    """
    seen: set[int] = set()
    hits = total = 0
    for before, context in _order(jobs):
        known = context.block_tokens * sum(1 for _ in takewhile(seen.__contains__, context.blocks))
        if before is not None:
            known = max(known, _count_repeated(before, context))
        usable = min(known, context.tokens - 1)
        hits += usable // block_tokens * block_tokens
        total += context.tokens
        seen.update(context.blocks)
    return hits / total if total else 0.0


def _order(jobs: Sequence[Job]) -> Iterator[tuple[Context | None, Context]]:
    """Order contexts roughly as they come, each with the one before it in its job."""
    turns: list[tuple[float, Context | None, Context]] = []
    for job in jobs:
        time_s, before = job.arrival_s, None
        for turn in job.turns:
            assert turn.context is not None
            turns.append((time_s, before, turn.context))
            time_s += turn.pause_s + max((result.duration_s for result in turn.results), default=0.0)
            before = turn.context
    return ((before, context) for _, before, context in sorted(turns, key=lambda each: each[0]))


def _count_repeated(before: Context, context: Context) -> int:
    """Count the tokens of the turn before, prompt and reply, that this prompt begins with."""
    blocks = len(before.blocks)
    if context.blocks[:blocks] != before.blocks:
        return 0
    # The last token of a reply is never fed back.
    return before.tokens + before.reply_tokens - 1
