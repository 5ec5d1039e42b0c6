"""How many turns jobs have behind them, against sorting all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.learning.job_blocks import TurnCounts

JOBS = st.integers(0, 9)


@given(
    changes=st.lists(st.tuples(JOBS, st.none() | st.integers(0, 6)), max_size=60),
    share=st.sampled_from((0.0, 1.0)) | st.floats(0, 1),
)
def test_a_quantile_is_that_of_all_jobs_in_order(changes: list[tuple[int, int | None]], share: float) -> None:
    counts, expected = TurnCounts(99), dict[int, int]()
    for job, change in changes:
        if change is None:
            counts.drop(job)
            expected.pop(job, None)
        else:
            counts.put(job, change)
            expected[job] = change
        counts.check_integrity(expected)
        in_order = sorted(expected.values())
        at = min(int(share * len(in_order)), len(in_order) - 1)
        assert counts.quantile(share) == (in_order[at] if in_order else 0)
        assert len(counts) == len(expected)


def test_jobs_that_stay_away_count_no_more_until_they_are_back() -> None:
    counts = TurnCounts(99)
    counts.put(1, 2, away_since_s=5.0)
    counts.put(2, 1, away_since_s=6.0)
    counts.put(3, 4)
    counts.blocks.put(1, "turn", [b"a"])
    counts.drop_away(6.0, 32)
    counts.check_integrity({2: 1, 3: 4})
    assert len(counts.blocks) == 0
    # Back, with as many turns as before.
    counts.put(2, 1)
    counts.drop_away(100.0, 32)
    counts.put(1, 2)
    counts.check_integrity({1: 2, 2: 1, 3: 4})


def test_a_wrong_count_is_found() -> None:
    counts = TurnCounts(99)
    counts.put(1, 2)
    with pytest.raises(RuntimeError, match="under way"):
        counts.check_integrity({1: 3})
    counts._jobs[2] += 1
    with pytest.raises(RuntimeError, match="by turns"):
        counts.check_integrity({1: 2})
    counts._jobs[2] -= 1
    counts.blocks.put(7, "turn", [b"a"])
    with pytest.raises(RuntimeError, match="not under way"):
        counts.check_integrity({1: 2})
    counts._away[7] = 0.0
    with pytest.raises(RuntimeError, match="away"):
        counts.check_integrity({1: 2})
