"""Why a prompt's tokens were not in the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import get_args

from agentcache.engine.jobs.evicted_blocks import Eviction, Loss
from agentcache.engine.jobs.turn_chains import Overlap
from agentcache.engine.jobs.views import HitPlace, LossView, MissReason

_MAX_LOSSES = 3

# Where blocks were lost, None where that is not known, and the session that got their room.
_Who = tuple[HitPlace | None, str]


def find_missed(blocks: int, cached: int, filled: Collection[int]) -> list[int]:
    """List the blocks of a prompt, by their index, that were computed for it: those in gaps, and all at its end.

    Args:
        blocks: Full blocks that could have been hit.
        cached: Of those, how many were hit without having been computed for the request.
        filled: The blocks in gaps that fill requests had computed for it before.
    """
    in_gaps = []
    begins_with = cached
    for index in sorted(filled):
        if index <= begins_with:
            in_gaps.append(index)
            begins_with += 1
    return [*in_gaps, *range(begins_with, blocks)]


def explain_misses(
    missed: Sequence[int],
    missed_tokens: int,
    evicted: Mapping[int, Eviction],
    overlap: Overlap,
    block_size: int,
    *,
    left_tokens: int = 0,
    reads_cache: bool = True,
    all_remembered: bool = False,
) -> dict[MissReason, int]:
    """Divide the missed tokens by reason; reasons without any are left out.

    What was never there and what has changed cannot be told apart block by block: as many tokens count as changed as
    the last turn had behind the place where the prompt leaves it.

    Args:
        missed: Blocks of `block_size` tokens by their index, in order.
        missed_tokens: The tokens of these blocks and of what fills no block.
        evicted: Those of `missed` that were evicted.
        overlap: With the last turn of the job.
        block_size: Of `missed`.
        left_tokens: Those of the prompt that are cached at the engine which the job has just left.
        reads_cache: Whether the request may hit anything.
        all_remembered: Whether all that was evicted since the last turn is known: what else it left is in the cache.
    """
    # Blocks up to here were cached at one time: a hash stands for all tokens before it.
    known = max(max(evicted, default=-1) + 1, overlap.shared_tokens // block_size)
    lost = _divide_lost([index for index in missed if index < known], evicted, reads_cache, all_remembered)
    gone, behind, not_read = (blocks * block_size for blocks in lost)
    rest = missed_tokens - gone - behind - not_read
    changed = min(rest, overlap.abandoned_tokens)
    left = sum(known <= index < left_tokens // block_size for index in missed) * block_size
    elsewhere = min(rest - changed, left)
    counts = (rest - changed - elsewhere, changed, gone, behind, elsewhere, not_read)
    return {reason: tokens for reason, tokens in zip(get_args(MissReason), counts, strict=True) if tokens}


def _divide_lost(
    lost: Sequence[int], evicted: Mapping[int, Eviction], reads_cache: bool, all_remembered: bool
) -> tuple[int, int, int]:
    """Count the blocks that were evicted, those behind them, and those that were there and could not be read."""
    if not reads_cache:
        return 0, 0, len(lost)
    first = min(evicted, default=len(lost) and lost[-1] + 1)
    behind = sum(index > first and index not in evicted for index in lost)
    there = len(lost) - behind - len(evicted) if all_remembered else 0
    return len(lost) - behind - there, behind, there


def view_losses(evicted: Mapping[int, Eviction], now_s: float, block_size: int) -> tuple[LossView, ...]:
    """View the evictions that cost most, at most three, the largest first."""
    return _view((((None, eviction.taker), eviction.time_s) for eviction in evicted.values()), now_s, block_size)


def view_placed_losses(
    evicted: Mapping[int, Eviction], losses: Mapping[int, Loss], now_s: float, block_size: int
) -> tuple[LossView, ...]:
    """View them where there is a second cache: what that had once was lost there, and not on the GPU.

    What is still there is left out: it was not lost.
    """
    lost: list[tuple[_Who, float]] = []
    for index, eviction in evicted.items():
        loss = losses.get(index)
        if loss is None:
            lost.append(((None, eviction.taker), eviction.time_s))
        elif loss.cause == "evicted":
            lost.append((("host", ""), loss.time_s))
        elif loss.cause != "not fetched":
            lost.append((("gpu", eviction.taker), eviction.time_s))
    return _view(lost, now_s, block_size)


def _view(lost: Iterable[tuple[_Who, float]], now_s: float, block_size: int) -> tuple[LossView, ...]:
    tokens: Counter[_Who] = Counter()
    latest_s: dict[_Who, float] = {}
    for who, time_s in lost:
        tokens[who] += block_size
        latest_s[who] = max(time_s, latest_s.get(who, time_s))
    return tuple(
        LossView(tokens=count, place=who[0], evicted_s=latest_s[who], ago_s=now_s - latest_s[who], taker=who[1] or None)
        for who, count in tokens.most_common(_MAX_LOSSES)
    )
