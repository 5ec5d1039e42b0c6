import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.learning.durations import Durations, Ended
from tool_runtime.learning.tool_key import HUMAN, ToolKey
from tool_runtime.learning.ttl import (
    RELEASE,
    GapHistory,
    HazardTtl,
    Situation,
    SurvivalCurve,
    log_logistic,
    shrunk_curve,
)

BASH = ToolKey("bash")
MAKE = ToolKey("bash", "make")
LS = ToolKey("bash", "ls")
NO_PRIOR = 1e-9


def learned(key: ToolKey, *seconds: float, durations: Durations | None = None, now_s: float = 0.0) -> Durations:
    durations = Durations() if durations is None else durations
    for each in seconds:
        durations.observe(key, each, Ended.RETURNED, now_s)
    return durations


def curve_of(returned: list[float], censored: list[float], strength: float = NO_PRIOR) -> SurvivalCurve:
    seconds = np.array(returned + censored)
    is_returned = np.array([True] * len(returned) + [False] * len(censored))
    return shrunk_curve(seconds, is_returned, np.ones(seconds.size), log_logistic(10.0), strength)


def told(history: GapHistory) -> tuple[float, ...]:
    return (*(history.curve.survival(t_s) for t_s in (0.01, 0.1, 1, 10, 100)), history.evidence, history.tool_count)


def test_a_history_is_made_once_until_something_is_learned() -> None:
    durations = learned(BASH, 1.0)
    first = durations.history(BASH)
    assert durations.history(BASH) is first
    assert learned(LS, 2.0, durations=durations).history(BASH).tool_count == 2
    durations.share(learned(BASH, 3.0).dump(), now_s=0.0)
    assert durations.history(BASH).tool_count == 3
    durations.restore(learned(BASH, 4.0).dump(), now_s=0.0)
    assert durations.history(BASH).tool_count == 4


def test_a_copy_keeps_its_histories_apart() -> None:
    durations = learned(BASH, 1.0)
    durations.history(BASH)
    twin = durations.copy()
    durations.observe(BASH, 2.0, Ended.RETURNED, 0.0)
    assert [each.history(BASH).tool_count for each in (durations, twin)] == [2, 1]
    twin.history(LS)
    assert durations.history(LS).tool_count == 2


def test_few_histories_are_kept_of_all_that_clients_call() -> None:
    durations = learned(BASH, 1.0)
    first = durations.history(BASH)
    for number in range(100):
        durations.history(ToolKey("bash", str(number)))
    assert durations.history(BASH) is not first
    assert told(durations.history(BASH)) == told(first)


seconds_lists = st.lists(st.floats(0.001, 1e4), min_size=1, max_size=30)


@given(seconds_lists)
def test_without_a_prior_the_curve_is_the_empirical_one(seconds: list[float]) -> None:
    curve = curve_of(seconds, [])
    for t_s in [*seconds, 0.5, 50.0]:
        share = sum(each > t_s for each in seconds) / len(seconds)
        assert curve.survival(t_s) == pytest.approx(share, abs=1e-6)
    for q in (0.1, 0.5, 0.9):
        expected = sorted(seconds)[math.ceil(q * len(seconds) - 1e-9) - 1]
        assert curve.quantile(q - 1e-6) == expected


def test_censored_gaps_count_as_waiting_while_they_were_seen() -> None:
    # Kaplan and Meier by hand: 4 at risk at 1 s, 3 at 2 s (one of them seen until then), 1 at 4 s.
    curve = curve_of([1.0, 4.0, 2.0], [2.0])
    assert curve.survival(1) == pytest.approx(3 / 4)
    assert curve.survival(2) == pytest.approx(3 / 4 * 2 / 3)
    assert curve.survival(3.9) == pytest.approx(1 / 2)
    assert curve.survival(4) == pytest.approx(0, abs=1e-6)


def test_gaps_that_never_ended_leave_the_tail_to_the_prior() -> None:
    prior = log_logistic(10.0)
    curve = curve_of([1.0, 1.0], [50.0, 50.0])
    assert curve.survival(49) == pytest.approx(1 / 2, rel=1e-3)
    assert curve.returned_within(100, 60) == pytest.approx(prior.returned_within(100, 60), rel=1e-3)


def test_a_log_logistic_prior() -> None:
    curve = log_logistic(10.0)
    assert curve.survival(10.0) == pytest.approx(0.5, abs=0.03)
    assert curve.survival(90.0) == pytest.approx(0.1, abs=0.01)
    assert curve.quantile(1.0) == math.inf


@given(seconds_lists, st.lists(st.floats(0.001, 1e4), max_size=10), st.floats(0.01, 100), st.data())
def test_a_curve_is_a_distribution(
    returned: list[float], censored: list[float], strength: float, data: st.DataObject
) -> None:
    curve = curve_of(returned, censored, strength)
    age_s, short_s, more_s = (data.draw(st.floats(0, 2e4)) for _ in range(3))
    long_s = short_s + more_s
    assert 1 >= curve.survival(short_s) >= curve.survival(long_s) >= 0
    assert 0 <= curve.returned_within(short_s, age_s) <= curve.returned_within(long_s, age_s) + 1e-12 <= 1 + 1e-9


def test_the_hazard_falls_with_age_for_what_is_mostly_short() -> None:
    curve = learned(BASH, *[0.5] * 40, *[300.0] * 10).history(BASH).curve
    assert curve.returned_within(1.0) > 0.6
    assert curve.returned_within(1.0, 5.0) < 0.1
    assert curve.returned_within(-1.0, 5.0) == 0
    assert curve.survival(-1.0) == 1


def test_quantiles_must_be_probabilities() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        log_logistic(1.0).quantile(1.5)


def test_a_young_command_follows_its_tool_an_old_one_itself() -> None:
    durations = learned(LS, *[0.1] * 100)
    chance = [durations.history(MAKE).curve.returned_within(1.0)]
    for count in (1, 9, 90):
        learned(MAKE, *[60.0] * count, durations=durations)
        chance.append(durations.history(MAKE).curve.returned_within(1.0))
    assert chance[0] > 0.9
    assert chance == sorted(chance, reverse=True)
    assert chance[1] > 0.7
    assert chance[-1] < 0.1
    assert durations.history(LS).curve.returned_within(1.0) > 0.93


def test_an_unknown_tool_follows_the_pool() -> None:
    durations = learned(BASH, *[3.0] * 200)
    assert durations.history(ToolKey("new", "x")).curve.quantile(0.5) == 3.0
    assert durations.history(ToolKey("new", "x")).tool_count == 0


def test_humans_and_tools_teach_each_other_nothing() -> None:
    durations = learned(BASH, *[0.1] * 100)
    assert durations.history(HUMAN).evidence == 0
    assert durations.history(HUMAN).curve.quantile(0.5) > 100
    learned(HUMAN, *[20.0] * 200, durations=durations)
    assert durations.history(HUMAN).curve.quantile(0.5) == 20.0
    assert durations.history(HUMAN).tool_mean_s == pytest.approx(20.0)
    assert durations.history(BASH).total_count == 100
    assert len(durations) == 1


@pytest.mark.parametrize("tool", ["AskUserQuestion", "ask_user", "question", "request_user_input", "bash+question"])
def test_a_question_to_the_human_begins_as_a_human_gap(tool: str) -> None:
    question = ToolKey(tool)
    durations = learned(BASH, *[0.1] * 100)
    before = told(durations.history(BASH))
    learned(HUMAN, *[200.0] * 100, durations=durations)
    history = durations.history(question)
    assert history.curve.survival(100) > 0.9
    assert HazardTtl().decide(Situation(history=history, loss_s=30.0)) == RELEASE
    assert learned(question, 60.0).history(question).evidence == 1
    learned(question, *[3.0] * 200, durations=durations)
    assert durations.history(question).curve.quantile(0.5) == 3.0
    assert durations.history(question).tool_count == 200
    # Neither learns from it.
    assert durations.history(HUMAN).curve.quantile(0.5) == 200.0
    assert told(durations.history(BASH)) == before
    assert durations.history(BASH).total_count == 100


def test_history_counts_and_samples() -> None:
    durations = learned(MAKE, 3.0, 1.0)
    learned(LS, 2.0, durations=durations)
    learned(ToolKey("read"), 10.0, durations=durations)
    durations.observe(MAKE, 50.0, Ended.STILL_OUT, 0.0)
    history = durations.history(MAKE)
    assert (history.key, history.tool_count, history.tool_mean_s, history.total_count) == (MAKE, 3, 2.0, 4)
    assert history.tool_samples_s.tolist() == [1.0, 2.0, 3.0]
    assert history.total_samples_s.tolist() == [1.0, 2.0, 3.0, 10.0]
    assert history.evidence == 5


def test_nothing_known() -> None:
    history = Durations().history(MAKE)
    assert (history.evidence, history.tool_count, history.tool_mean_s, history.total_count) == (0, 0, None, 0)
    assert history.tool_samples_s.size == 0
    assert history.curve.quantile(0.5) == pytest.approx(9.0, rel=0.13)


def test_what_broke_off_trains_nothing() -> None:
    durations = learned(MAKE, 1.0)
    before = told(durations.history(MAKE))
    durations.observe(MAKE, 500.0, Ended.BROKEN, 10.0)
    assert told(durations.history(MAKE)) == before
    durations.observe(MAKE, 500.0, Ended.STILL_OUT, 0.0)
    assert durations.history(MAKE).curve.survival(100) > before[4]


def test_records_forget_with_time_and_with_new_samples() -> None:
    durations = learned(BASH, *[100.0] * 100, durations=Durations(half_life_s=60.0))
    learned(BASH, *[1.0] * 10, durations=durations, now_s=600.0)
    assert durations.history(BASH).curve.returned_within(2.0) > 0.5
    assert durations.history(BASH).evidence == pytest.approx(10 + 100 / 2**10)
    short = learned(BASH, *[100.0] * 100, *[1.0] * 8, durations=Durations(max_samples=8, max_pool_samples=8))
    assert short.history(BASH).tool_samples_s.tolist() == [1.0] * 8
    assert short.history(BASH).tool_count == 108


def test_a_clock_that_goes_back_is_harmless() -> None:
    durations = learned(BASH, 1.0, now_s=1000.0)
    learned(BASH, 1.0, durations=durations, now_s=0.0)
    assert durations.history(BASH).evidence == 2


def test_keys_are_bounded_and_the_tool_outlives_its_commands() -> None:
    durations = Durations(max_keys=10)
    for number in range(1000):
        learned(ToolKey("bash", f"make {number}"), 2.0, durations=durations)
    assert len(durations) == 10
    assert durations.history(BASH).tool_count == 1000
    assert durations.history(BASH).total_count == 1000


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_a_gap_must_be_a_length_of_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        Durations().observe(BASH, seconds, Ended.RETURNED, 0.0)


@pytest.mark.parametrize("name", ["max_keys", "max_samples", "max_pool_samples", "half_life_s", "strength"])
def test_bounds_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Durations(**{name: 0})
