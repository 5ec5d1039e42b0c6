import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.learning.durations import Durations, Ended
from tool_runtime.learning.runtime import correction_factor
from tool_runtime.learning.tool_key import HUMAN, ToolKey
from tool_runtime.learning.ttl import GapHistory

BASH = ToolKey("bash")


def history_with(key: ToolKey, *gaps_s: float) -> GapHistory:
    durations = Durations()
    for gap_s in gaps_s:
        durations.observe(key, gap_s, Ended.RETURNED, 0.0)
    return durations.history(key)


def test_tools_that_return_in_time_are_trusted_others_doubted() -> None:
    fast, slow = history_with(BASH, *[1.0] * 200), history_with(BASH, *[500.0] * 200)
    assert correction_factor(fast, 10.0, 0.5) == pytest.approx(2.0, rel=0.1)
    assert correction_factor(slow, 10.0, 0.5) == 1 / 8
    assert correction_factor(slow, 10.0, 0.5, bound=2.0) == 0.5
    assert correction_factor(fast, 10.0, 0.01, bound=3.0) == 3.0


def test_a_final_answer_has_the_humans_record() -> None:
    assert correction_factor(history_with(HUMAN, *[20.0] * 200), 30.0, 0.5) == pytest.approx(2.0, rel=0.1)
    assert correction_factor(history_with(HUMAN, *[900.0] * 200), 30.0, 0.5) < 0.5


def test_nothing_known_changes_nothing() -> None:
    assert correction_factor(history_with(BASH), 10.0, 0.5) == 1.0
    assert correction_factor(history_with(HUMAN), 10.0, 0.5) == 1.0
    assert correction_factor(history_with(BASH, 1.0), None, 0.5) == 1.0


@given(st.lists(st.floats(0, 1e5), max_size=20), st.floats(0, 1e6), st.floats(0.01, 1), st.floats(1, 100))
def test_the_factor_is_bounded_and_grows_with_the_lifespan(
    gaps_s: list[float], lifespan_s: float, reference: float, bound: float
) -> None:
    history = history_with(BASH, *gaps_s)
    factor = correction_factor(history, lifespan_s, reference, bound)
    assert 1 / bound <= factor <= bound
    assert factor <= correction_factor(history, 2 * lifespan_s, reference, bound)


@pytest.mark.parametrize(("reference", "bound"), [(0.0, 8.0), (1.5, 8.0), (math.nan, 8.0), (0.5, 0.9), (0.5, math.inf)])
def test_bounds_must_make_sense(reference: float, bound: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        correction_factor(history_with(BASH), 10.0, reference, bound)
