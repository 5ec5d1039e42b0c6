"""Load control: jobs that together want more than the caches hold take turns, as processes do in too small a memory.

Without it each that comes back takes the room of others, which then come back to less: all compute large parts of their
contexts again, for ever (thrashing). With it those that still have theirs go on, and those that lost theirs wait.
"""

from __future__ import annotations

from collections.abc import Callable

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
