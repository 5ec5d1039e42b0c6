"""How many turns jobs have behind them and how many tokens they have, against sorting and adding up all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.learning.turn_counts import TurnCounts

JOBS = st.integers(0, 9)


@given(
    changes=st.lists(st.tuples(JOBS, st.none() | st.tuples(st.integers(0, 6), st.integers(0, 3))), max_size=60),
    share=st.sampled_from((0.0, 1.0)) | st.floats(0, 1),
)
def test_a_quantile_is_that_of_all_jobs_in_order(
    changes: list[tuple[int, tuple[int, int] | None]], share: float
) -> None:
    counts, expected = TurnCounts(), dict[int, tuple[int, int]]()
    for job, change in changes:
        if change is None:
            counts.drop(job)
            expected.pop(job, None)
        else:
            counts.put(job, *change)
            expected[job] = change
        counts.check_integrity(expected)
        assert counts.tokens == sum(tokens for _, tokens in expected.values())
        in_order = sorted(turns for turns, _ in expected.values())
        at = min(int(share * len(in_order)), len(in_order) - 1)
        assert counts.quantile(share) == (in_order[at] if in_order else 0)
        assert len(counts) == len(expected)


def test_jobs_that_stay_away_count_no_more_until_they_are_back() -> None:
    counts = TurnCounts()
    counts.put(1, 2, 30, away_since_s=5.0)
    counts.put(2, 1, 20, away_since_s=6.0)
    counts.put(3, 4, 10)
    counts.drop_away(6.0)
    counts.check_integrity({2: (1, 20), 3: (4, 10)})
    # Back, with as many turns and tokens as before.
    counts.put(2, 1, 20)
    counts.drop_away(100.0)
    counts.put(1, 2, 30)
    counts.check_integrity({1: (2, 30), 2: (1, 20), 3: (4, 10)})


def test_a_wrong_count_is_found() -> None:
    counts = TurnCounts()
    counts.put(1, 2, 30)
    with pytest.raises(RuntimeError, match="under way"):
        counts.check_integrity({1: (3, 30)})
    counts._jobs[2] += 1
    with pytest.raises(RuntimeError, match="by turns"):
        counts.check_integrity({1: (2, 30)})
    counts._jobs[2] -= 1
    counts.tokens += 1
    with pytest.raises(RuntimeError, match="have 31 tokens"):
        counts.check_integrity({1: (2, 30)})
    counts._away[7] = 0.0
    with pytest.raises(RuntimeError, match="away"):
        counts.check_integrity({1: (2, 30)})
