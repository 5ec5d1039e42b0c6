from __future__ import annotations

import numpy as np
import pytest
from converters.pace import Pace, pace_jobs, user_pause
from made_pace import make_pace

from tool_runtime.agent.job import Job, ToolCall, ToolResult, Turn
from workloads.pacing import parse_tool_latency

USER = {"role": "user", "content": "Hello"}
CALL = ToolCall("look", "{}")
JOB = Job(
    "job",
    (USER,),
    turns=(Turn("", (CALL, CALL), (ToolResult("A", 0.0), ToolResult("B", 0.0))), Turn("x", said=(USER,)), Turn("y")),
)


def test_calls_get_durations_and_what_was_said_a_pause():
    first, second = pace_jobs([JOB, JOB], make_pace())
    assert [job.arrival_s for job in (first, second)] == [0.0, 1.0]
    assert [[result.duration_s for result in turn.results] for turn in first.turns] == [[2.0, 2.0], [], []]
    assert [turn.pause_s for turn in first.turns] == [0.0, 7.0, 0.0]


def test_a_job_has_its_times_whatever_follows_it():
    def draw(count):
        tool, user = parse_tool_latency("bfcl"), user_pause(10.0, 0.25)
        return pace_jobs([JOB] * count, Pace(lambda n: [0.0] * n, tool, user, seed=3))

    assert draw(5)[:2] == draw(2)
    assert draw(2)[0].turns != draw(2)[1].turns


def test_pauses_have_their_mean_and_variation():
    rng, pause = np.random.default_rng(0), user_pause(10.0, 0.25)
    drawn = [pause(rng) for _ in range(4000)]
    assert np.mean(drawn) == pytest.approx(10, rel=0.02)
    assert np.std(drawn) / np.mean(drawn) == pytest.approx(0.25, rel=0.05)
