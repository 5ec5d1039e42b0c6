from __future__ import annotations

import numpy as np
import pytest

from agentcache.errors import InputError
from workloads.pacing import parse_tool_latency


@pytest.mark.parametrize(
    ("text", "mean", "deviation"),
    [
        ("bfcl", 1.923, 2.133),
        ("lognormal:4,1.5", 4, 1.5),
        ("exponential:0.7", 0.7, 0.7),
        ("0.5", 0.5, 0),
        ("0", 0, 0),
    ],
)
def test_draws_have_the_asked_moments(text, mean, deviation):
    draw = parse_tool_latency(text)
    rng = np.random.default_rng(7)
    seconds = np.array([draw(rng) for _ in range(100_000)])
    assert seconds.min() >= 0
    assert seconds.mean() == pytest.approx(mean, rel=0.02)
    assert seconds.std() == pytest.approx(deviation, rel=0.06)


def test_tracelab_law_has_the_published_shares():
    draw = parse_tool_latency("tracelab")
    rng = np.random.default_rng(7)
    seconds = np.array([draw(rng) for _ in range(200_000)])
    assert np.median(seconds) == pytest.approx(0.13, rel=0.03)
    assert seconds.mean() == pytest.approx(16.8, rel=0.03)
    for calls, share, time in ((seconds < 1, 0.70, 0.007), (seconds > 60, 0.049, 0.92)):
        assert calls.mean() == pytest.approx(share, abs=0.003)
        assert seconds[calls].sum() / seconds.sum() == pytest.approx(time, abs=0.01)


def test_the_same_generator_state_gives_the_same_seconds():
    draw = parse_tool_latency("bfcl")
    first, second = ([draw(rng) for _ in range(5)] for rng in (np.random.default_rng(3), np.random.default_rng(3)))
    assert first == second


@pytest.mark.parametrize(
    "text",
    ["", "fast", "-1", "nan", "inf", "lognormal:1", "lognormal:1,0", "lognormal:1,x", "exponential:0",
     "exponential:1,2", "exponential:", "bfcl:1", "tracelab:1", "uniform:1,2"],
)  # fmt: skip
def test_bad_text_is_refused_with_what_is_allowed(text):
    with pytest.raises(
        InputError, match=r'--tool-latency.*give "bfcl", "tracelab", seconds such as "0.5", "lognormal:MEAN,SD"'
    ):
        parse_tool_latency(text)
