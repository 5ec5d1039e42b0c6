"""A client that breaks most of its promises is not believed any more."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pytest

from agentcache.engine.constants import EXPECTED_ARGUMENT
from agentcache.engine.jobs.promises import Promises
from agentcache.engine.marks import MAX_HURRY_S, Expected, read_expected
from agentcache.engine.vllm.types import Request
from tool_runtime.learning.ttl import RELEASE, Hold


def promise(promises: Promises, turn: str, keep_s: float = 10.0) -> None:
    promises.finished("me", turn, Expected(kv_retention_ttl_seconds=keep_s), 0)


def test_a_hold_lasts_as_long_as_promised_and_no_longer() -> None:
    promises = Promises()
    promise(promises, "a")
    assert promises.lengthen("a", RELEASE, 4.0, 2.0) == Hold(6.0, 2.0)
    assert promises.lengthen("a", Hold(20.0, 3.0), 4.0, 2.0) == Hold(20.0, 3.0), "what was learnt may be longer"
    assert promises.lengthen("a", RELEASE, 10.0, 2.0) == RELEASE
    assert not promises.given, "it did not come"


def test_credit_is_lost_by_the_majority_and_won_back() -> None:
    promises = Promises()
    for turn in range(4):
        promise(promises, f"{turn}")
        promises.returned(f"{turn}", 19.0)
    for turn in range(4):
        assert promises.believes("me")
        promise(promises, f"late {turn}")
        promises.returned(f"late {turn}", 21.0)
    assert promises.believes("me"), "half of eight"
    promises.finished("me", "", Expected(expected_output_length=100), 201)
    assert not promises.believes("me")
    assert promises.believes("other")
    promises.finished("me", "", Expected(expected_output_length=100), 200)
    assert not promises.believes("me")
    for _ in range(4):
        promises.finished("me", "", Expected(expected_output_length=100), 5)
    assert promises.believes("me")


def test_who_was_never_to_come_back_breaks_it_by_coming() -> None:
    promises = Promises()
    for broken in range(5):
        assert promises.believes("me"), f"{broken} of eight"
        promises.finished("me", "a", Expected(expected_resume=False, kv_retention_ttl_seconds=9.0), 0)
        promises.returned("a", 0.1)
        promises.returned("a", 0.1)
    assert not promises.believes("me")


def test_what_is_not_believed_keeps_nothing_and_is_judged() -> None:
    promises = Promises()
    for turn in range(5):
        promise(promises, f"{turn}")
        promises.returned(f"{turn}", 21.0)
    promise(promises, "kept")
    assert promises.lengthen("kept", RELEASE, 4.0, 2.0) == RELEASE
    for turn in range(4):
        promise(promises, f"good {turn}")
        promises.returned(f"good {turn}", 1.0)
    assert promises.believes("me")


@pytest.mark.parametrize(
    "told",
    [
        {"priority": "x"},
        {"priority": 10**400},
        {"priority": True},
        {"deadline_seconds": math.nan},
        {"deadline_seconds": -1.0},
        {"expected_output_length": 2.5},
        {"expected_resume": 1},
        {"hurry_s": 3.0},
        {7: 1},
        ["priority"],
    ],
)
def test_what_our_front_end_never_tells_counts_for_nothing(told: object) -> None:
    params = SimpleNamespace(extra_args={EXPECTED_ARGUMENT: told})
    assert read_expected(cast("Request", SimpleNamespace(sampling_params=params, priority=0))) == Expected()


def test_priorities_and_deadlines_hurry_by_ten_seconds_at_most() -> None:
    told = [
        Expected(),
        Expected(priority=3),
        Expected(priority=10**9),
        Expected(priority=-(10**9), deadline_seconds=0.0),
        Expected(deadline_seconds=0.0),
        Expected(deadline_seconds=4.0, priority=2),
        Expected(deadline_seconds=600.0),
    ]
    assert [each.hurry_s for each in told] == [0.0, 3.0, MAX_HURRY_S, -MAX_HURRY_S, MAX_HURRY_S, 8.0, 0.0]
