from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import pick_size

from agentcache.errors import InputError
from workloads.arrivals import draw_arrivals


@given(
    kind=st.sampled_from(["poisson", "gamma", "even", "at-once"]),
    jobs=st.integers(1, 200),
    rate=st.floats(0.01, 100),
    cv=st.floats(0.1, 10),
    seed=st.integers(0, 2**32),
)
def test_arrivals_are_sorted_from_zero_and_repeat_with_the_seed(kind, jobs, rate, cv, seed):
    times = draw_arrivals(kind, jobs, rate, cv, seed)
    assert len(times) == jobs
    assert times[0] == 0
    assert times == sorted(times)
    assert times == draw_arrivals(kind, jobs, rate, cv, seed)


def test_even_gaps_are_all_the_same():
    assert draw_arrivals("even", 4, 0.2, 3.0, seed=7) == [0.0, 5.0, 10.0, 15.0]


@settings(max_examples=pick_size(10, 40))
@given(rate=st.floats(0.05, 20), seed=st.integers(0, 2**32))
def test_poisson_gaps_have_the_mean_of_the_rate_and_a_cv_of_one(rate, seed):
    gaps = np.diff(draw_arrivals("poisson", 10_000, rate, 5.0, seed))
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.08)


@settings(max_examples=pick_size(10, 40))
@given(rate=st.floats(0.05, 20), cv=st.floats(0.25, 2.5), seed=st.integers(0, 2**32))
def test_gamma_gaps_have_the_mean_of_the_rate_and_the_asked_cv(rate, cv, seed):
    gaps = np.diff(draw_arrivals("gamma", 40_000, rate, cv, seed))
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.08)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.12)


def test_at_once_is_all_zeros_whatever_the_rate():
    assert draw_arrivals("at-once", 3, 0.0, 0.0, 1) == [0.0, 0.0, 0.0]


def test_another_seed_gives_other_times():
    assert draw_arrivals("poisson", 5, 1.0, 1.0, 1) != draw_arrivals("poisson", 5, 1.0, 1.0, 2)


@pytest.mark.parametrize(
    ("kind", "jobs", "rate", "cv", "flag"),
    [
        ("poisson", 1, 0.0, 1.0, "--rate 0"),
        ("gamma", 1, -1.0, 1.0, "--rate -1"),
        ("poisson", 1, float("nan"), 1.0, "--rate nan"),
        ("gamma", 1, 1.0, 0.0, "--cv 0"),
        ("gamma", 1, 1.0, float("inf"), "--cv inf"),
        ("poisson", 0, 1.0, 1.0, "--jobs 0"),
        ("uniform", 1, 1.0, 1.0, "--arrival uniform"),
    ],
)
def test_bad_values_are_refused_by_their_flag(kind, jobs, rate, cv, flag):
    with pytest.raises(InputError, match=flag):
        draw_arrivals(kind, jobs, rate, cv, 0)
