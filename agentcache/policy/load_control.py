"""Decides which turns wait while jobs want more than the caches hold, and predicts how much evicted KV will be lost.

Without it each that comes back takes the room of others, which then come back to less: all compute large parts of their
contexts again, for ever (thrashing). With it those that still have theirs go on, and those that lost theirs wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# No client is to give up: openai's and anthropic's wait for 600 s, and a prefill is still to come.
MOST_S = 450.0
# Contexts that take longer to compute than this, all together, are waited for no longer: by half of it by default.
ALL_S = 90.0


def has_lost_context(prompt_tokens: int, left_tokens: int, kept_tokens: int) -> bool:
    """Tell whether more than half of a prompt is what the turn before left in the caches and they lost since."""
    return left_tokens - kept_tokens > prompt_tokens / 2


def find_longest_wait(
    share: float, *, jobs: int, tokens: float, room: float, block_tokens: int, block_s: Callable[[float], float]
) -> float:
    """Return for how many seconds a turn that lost its context waits at most: 0 while the caches have room for all.

    Args:
        share: Of the seconds in which the contexts of all jobs under way are computed, or of `ALL_S` if that is less; 0
            for no waits.
        jobs: The jobs under way.
        tokens: What they will come back for, together; what several share counts once.
        room: What the caches hold together, in tokens.
        block_tokens: The tokens of a block.
        block_s: The seconds that computing a block takes which ends so many tokens into its sequence.
    """
    if not jobs or tokens <= room:
        return 0.0
    return min(MOST_S, share * min(ALL_S, tokens / block_tokens * block_s(tokens / jobs / 2)))


class LossRange(NamedTuple):
    """Nothing is lost while jobs want `fits` times the room, all of what is evicted once they want `full` times.

    Contexts grow and jobs come; on the other hand not all come back.
    """

    fits: float
    full: float


# Chosen by simulations of BFCL's seeds 1, 2 and 10, of 0.6 to 1.0, 0.7 to 1.1 and 0.8 to 1.2
# (docs/results/host-memory-waits.md#what-juniors-wait-for).
BESIDE_TIER = LossRange(0.7, 1.1)
# Chosen on seeds 0 to 5 and 289, of 0.7 to 1.0 and 1.1, 0.9 to 1.2 and 1.0 to 1.2 (docs/results/families.md#chosen).
WITHOUT_TIER = LossRange(1.0, 1.2)


def foresee_loss(wanted: float, room: float, losses: LossRange) -> float:
    """Return the share of evicted KV that will be lost before its job is back, from 0 to 1.

    Args:
        wanted: The tokens that the jobs under way will come back for.
        room: Those that the GPU's cache and the CPU cache, if it is used, hold together.
        losses: How often they may want that room.
    """
    return min(1.0, max(0.0, (wanted / room - losses.fits) / (losses.full - losses.fits)))
