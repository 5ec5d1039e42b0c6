from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentcache.policy.step_cost import Row
from agentcache.profile.step_log import StepLog


class Scheduler:
    """Has two steps in flight; only the two methods and the requests are looked at."""

    def __init__(self) -> None:
        self.requests = {"a": SimpleNamespace(num_computed_tokens=0)}

    def schedule(self, _: bool = False) -> Any:
        self.requests["a"].num_computed_tokens += 10
        return SimpleNamespace(num_scheduled_tokens={"a": 10})

    def update_from_output(self, _step: object, _output: object) -> dict[int, Any]:
        return {}


def test_a_step_that_waits_is_timed_from_the_end_of_the_last() -> None:
    now_s = 0.0
    scheduler = cast(Any, Scheduler())
    log = StepLog(scheduler, lambda: now_s)
    first = scheduler.schedule()
    now_s = 1.0
    second = scheduler.schedule()
    now_s = 10.0
    scheduler.update_from_output(first, None)
    now_s = 14.0
    scheduler.update_from_output(second, None)
    # The engine was idle until 20.
    now_s = 20.0
    third = scheduler.schedule()
    now_s = 25.0
    scheduler.update_from_output(third, None)
    steps = log.take()
    assert [step.rows for step in steps] == [(Row(10, 0),), (Row(10, 10),), (Row(10, 20),)]
    assert [step.seconds for step in steps] == pytest.approx([10.0, 4.0, 5.0])
    assert log.take() == []
