from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentcache.policy.step_cost import Row
from agentcache.profile.step_log import StepLog


def test_a_step_that_waits_is_timed_from_the_end_of_the_last() -> None:
    now_s = 0.0
    log = StepLog(lambda: now_s)
    requests: Any = {"a": SimpleNamespace(num_computed_tokens=0)}

    def schedule() -> Any:
        requests["a"].num_computed_tokens += 10
        output: Any = SimpleNamespace(num_scheduled_tokens={"a": 10})
        log.note_start(output, requests, now_s)
        return output

    first = schedule()
    now_s = 1.0
    second = schedule()
    now_s = 10.0
    log.note_end(first)
    now_s = 14.0
    log.note_end(second)
    # The engine was idle until 20.
    now_s = 20.0
    third = schedule()
    now_s = 25.0
    log.note_end(third)
    steps = log.take()
    assert [step.rows for step in steps] == [(Row(10, 0),), (Row(10, 10),), (Row(10, 20),)]
    assert [step.seconds for step in steps] == pytest.approx([10.0, 4.0, 5.0])
    assert log.take() == []
