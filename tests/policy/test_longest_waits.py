"""How long turns without their context wait, by what jobs want and what there is room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.load_control import find_longest_wait, has_lost_context
from agentcache.policy.registry import POLICIES

# The openai and anthropic clients give up after so long.
CLIENT_S = 600.0


def find_wait(tokens: float, share: float = 1.0, jobs: int = 4) -> float:
    """The caches have room for 1,000 tokens; the block that ends at token n takes n/1000 s."""
    return find_longest_wait(
        share, jobs=jobs, tokens=tokens, room=1000, block_tokens=10, block_s=lambda place: place / 1000
    )


def test_by_default_no_wait_is_longer_than_45_s() -> None:
    order = POLICIES["agentcache"].runtime.order
    assert find_wait(1e9, share=order.load_control) == 45


def test_nobody_waits_while_all_contexts_fit() -> None:
    assert find_wait(1000) == 0
    assert find_wait(1001) > 0
    assert find_wait(0, jobs=0) == 0


def test_the_wait_is_what_all_contexts_take_to_compute() -> None:
    # 200 blocks, in contexts of 500 tokens, so 0.25 s each in the mean.
    assert find_wait(2000) == pytest.approx(50)
    assert find_wait(2000, share=0.5) == pytest.approx(25)
    assert find_wait(2000, share=0) == 0
    assert find_wait(1e6, share=2) == 180, "of 90 s at most"


@given(st.floats(0, 1e9), st.integers(1, 1000), st.floats(0, 10))
def test_no_wait_outlasts_a_client(tokens: float, jobs: int, share: float) -> None:
    assert 0 <= find_wait(tokens, share, jobs) <= 0.75 * CLIENT_S


@pytest.mark.parametrize(
    ("prompt", "left", "kept", "lost"),
    [
        (100, 90, 90, False),
        (100, 90, 40, False),
        (100, 90, 39, True),
        (100, 90, 0, True),
        # What was never there is not lost.
        (100, 50, 0, False),
        (100, 0, 0, False),
        # Others may have left more of it.
        (100, 60, 80, False),
    ],
)
def test_a_context_is_lost_where_most_of_the_prompt_was_there(prompt: int, left: int, kept: int, lost: bool) -> None:
    assert has_lost_context(prompt, left, kept) is lost
