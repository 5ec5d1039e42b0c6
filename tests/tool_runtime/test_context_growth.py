from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.learning.runtime import AHEAD_TURNS, ContextGrowth

PROMPTS = st.lists(st.integers(1, 10_000), max_size=1200)


def test_a_context_is_taken_to_double_before_anything_is_known() -> None:
    assert ContextGrowth().ratio == 1.0


@pytest.mark.parametrize(("prompt", "following", "ratio"), [(1000, 1100, 0.5), (1000, 1000, 0.0), (1000, 3000, 10.0)])
def test_many_turns_outweigh_the_guess(prompt: int, following: int, ratio: float) -> None:
    growth = ContextGrowth()
    for _ in range(2000):
        growth.note_turn(prompt, following)
    assert growth.ratio == pytest.approx(ratio, abs=0.01 + 0.01 * ratio)


def test_eight_turns_weigh_as_much_as_the_guess() -> None:
    growth = ContextGrowth()
    for _ in range(8):
        growth.note_turn(1000, 1000)
    assert growth.ratio == pytest.approx(0.5)


def test_long_prompts_count_by_their_tokens() -> None:
    growth = ContextGrowth()
    for _ in range(500):
        growth.note_turn(9000, 9000)
        growth.note_turn(1000, 2000)
    assert growth.ratio == pytest.approx(AHEAD_TURNS * 0.1, rel=0.02)


@pytest.mark.parametrize("turns", [(0, 1000), (1000, 999), (-1, 5)])
def test_another_thread_and_a_first_turn_tell_nothing(turns: tuple[int, int]) -> None:
    growth = ContextGrowth()
    growth.note_turn(*turns)
    assert growth.ratio == 1.0


@given(prompts=PROMPTS)
def test_it_equals_a_sum_over_the_latest_turns(prompts: list[int]) -> None:
    growth = ContextGrowth()
    turns = [(before, after) for before, after in pairwise(prompts) if after >= before]
    for before, after in pairwise(prompts):
        growth.note_turn(before, after)
    latest = turns[-1000:]
    seen = sum(after - before for before, after in latest) / max(1, sum(before for before, _ in latest))
    assert growth.ratio == pytest.approx(AHEAD_TURNS * (len(latest) * seen + 8 / AHEAD_TURNS) / (len(latest) + 8))
