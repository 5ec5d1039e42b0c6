"""Engines as they are served on a GPU, and how near two replies are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from live_engine import BLOCK, Reply, make_prompt

# As an engine is served: CUDA graphs, and steps scheduled while others run.
SERVED: dict[str, Any] = {
    "dtype": "float16",
    "enforce_eager": False,
    "max_num_seqs": 8,
    # What must be free on the GPU at the start; engines of other tests may still be there.
    "gpu_memory_utilization": 0.1,
}
PROMPT = make_prompt(seed=1, tokens=20 * BLOCK + 7)
# Ours may be so many times as far from a cold engine's as that is from itself.
MARGIN = 3.0
# Of the replies: after another token at a near tie, whose chance grows with the length, a reply has its own way.
MOST_OTHER = 0.25


def find_distance(reply: Reply, expected: Reply) -> float:
    """Find the largest difference between logprobs of chosen tokens, up to the first that is another token.

    There it counts, too, how much less likely each engine found the other's token, as far as its reply has that.
    """
    distance = 0.0
    for place, (token, other) in enumerate(zip(reply.tokens, expected.tokens, strict=True)):
        distance = max(distance, abs(reply.logprobs[place] - expected.logprobs[place]))
        if token != other:
            return max(distance, _find_lead(reply, place, other), _find_lead(expected, place, token))
    return distance


def _find_lead(reply: Reply, place: int, other: int) -> float:
    """Find by how much its own token leads; the other is at most as likely as the last that the reply tells."""
    likely = reply.likely[place]
    return reply.logprobs[place] - likely.get(other, min(likely.values()))


def assert_near(pairs: Iterable[tuple[Reply, Reply]], tolerance: float) -> None:
    """At the first other token both were almost as likely: each engine's best then has nearly the same logprob."""
    pairs = list(pairs)
    assert max(find_distance(reply, expected) for reply, expected in pairs) <= tolerance
    other = sum(reply.tokens != expected.tokens for reply, expected in pairs)
    assert other <= max(1, MOST_OTHER * len(pairs))
