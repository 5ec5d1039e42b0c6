from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import pick_size

from agentcache.errors import InputError
from workloads.pacing import draw_arrivals


@given(
    kind=st.sampled_from(["poisson", "even", "at-once"]),
    jobs=st.integers(1, 200),
    rate=st.floats(0.01, 100),
    seed=st.integers(0, 2**32),
)
def test_arrivals_are_sorted_from_zero_and_repeat_with_the_seed(kind, jobs, rate, seed):
    times = draw_arrivals(kind, jobs, rate, seed)
    assert len(times) == jobs
    assert times[0] == 0
    assert times == sorted(times)
    assert times == draw_arrivals(kind, jobs, rate, seed)


def test_even_gaps_are_all_the_same():
    assert draw_arrivals("even", 4, 0.2, seed=7) == [0.0, 5.0, 10.0, 15.0]


@settings(max_examples=pick_size(10, 40))
@given(rate=st.floats(0.05, 20), seed=st.integers(0, 2**32))
def test_poisson_gaps_have_the_mean_of_the_rate_and_a_cv_of_one(rate, seed):
    gaps = np.diff(draw_arrivals("poisson", 10_000, rate, seed))
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.08)


def test_at_once_is_all_zeros_whatever_the_rate():
    assert draw_arrivals("at-once", 3, 0.0, 1) == [0.0, 0.0, 0.0]


def test_another_seed_gives_other_times():
    assert draw_arrivals("poisson", 5, 1.0, 1) != draw_arrivals("poisson", 5, 1.0, 2)


@pytest.mark.parametrize(
    ("kind", "jobs", "rate", "flag"),
    [
        ("poisson", 1, 0.0, "--rate 0"),
        ("poisson", 1, float("nan"), "--rate nan"),
        ("even", 1, -1.0, "--rate -1"),
        ("poisson", 0, 1.0, "--jobs 0"),
        ("uniform", 1, 1.0, "--arrival uniform"),
    ],
)
def test_bad_values_are_refused_by_their_flag(kind, jobs, rate, flag):
    with pytest.raises(InputError, match=flag):
        draw_arrivals(kind, jobs, rate, 0)
