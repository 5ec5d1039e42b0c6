from __future__ import annotations

from operator import methodcaller
from typing import Any
from unittest import mock

import pytest
from kept_objects import list_kept
from tracked_requests import ASKED, Tracked
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.request import RequestStatus

from agentcache.engine.constants import JOB_METHOD, JOBS_METHOD, RELEASE_METHOD
from agentcache.engine.rpc.core_calls import answer_front_ends, release, take_expired
from agentcache.engine.rpc.job_views import count_runtime, view_session
from agentcache.engine.scheduler import AgentScheduler
from tool_runtime.learning.job_table import MAX_EXPIRED


@pytest.fixture
def core() -> EngineCoreProc:
    """An engine core whose jobs are of one session's name, one a tenant."""
    tracked = Tracked()
    for number, salt in enumerate([None, "a", "b"]):
        tracked.turn(f"turn {number}", ASKED, session="mine", salt=salt)
    return make_core(tracked)


def make_core(tracked: Tracked) -> EngineCoreProc:
    """What front ends call, with a scheduler of which they want the tracker alone."""
    answer_front_ends()
    core = EngineCoreProc.__new__(EngineCoreProc)
    core.scheduler = mock.Mock(spec=AgentScheduler, tracker=tracked.tracker)
    core.engine_index = 3
    return core


def call(core: EngineCoreProc, method: str, *args: object) -> Any:
    """As vLLM's utility calls do."""
    return methodcaller(method, *args)(core)


def numbers(answer: list[dict[str, Any]] | None) -> list[float]:
    """Each job arrived a second after the one before."""
    assert answer is not None
    return [job["arrived_s"] - 1000 for job in answer]


def test_a_session_is_shown_of_all_tenants_or_of_one(core: EngineCoreProc) -> None:
    shown = {0: [None], 1: ["a"], 2: ["b"]}
    assert numbers(call(core, JOB_METHOD, "mine", None)) == [0, 1, 2]
    for number, tenants in shown.items():
        assert numbers(call(core, JOB_METHOD, "mine", tenants)) == [number]
    assert numbers(call(core, JOB_METHOD, "mine", ["c"])) == []


def test_a_session_is_released_of_one_tenant_or_of_all(core: EngineCoreProc) -> None:
    assert call(core, RELEASE_METHOD, "mine", ["c"]) == {"sessions": [], "ended": []}
    assert call(core, RELEASE_METHOD, "mine", ["a"])["sessions"] == ["mine"]
    both = call(core, RELEASE_METHOD, "mine", None)
    assert both["sessions"] == ["mine", "mine"]
    assert [(job["engine"], job["cause"], job["turns"]) for job in both["ended"]] == 2 * [(3, "job over", 1)]
    assert call(core, RELEASE_METHOD, "mine", None) == {"sessions": [], "ended": []}


def test_a_job_that_is_over_is_shown_to_who_may_see_it(core: EngineCoreProc) -> None:
    call(core, RELEASE_METHOD, "mine", ["a"])
    call(core, RELEASE_METHOD, "mine", ["b"])
    # Those of the table come first, then those that are over, the latest first.
    seen = {None: [0, 2, 1], (None,): [0], ("a",): [1], ("b",): [2], ("c",): [], ("a", "b"): [2, 1]}
    for tenants, jobs in seen.items():
        shown = call(core, JOB_METHOD, "mine", None if tenants is None else list(tenants))
        assert numbers(shown) == jobs
        assert [job["summary"] is not None for job in shown] == [number != 0 for number in jobs]


def test_a_reply_finds_its_job_when_that_is_over() -> None:
    tracked = Tracked()
    tracked.turn("chatcmpl-1-0a1b2c3d", ASKED, session="other", salt="a")
    release(tracked.tracker, "chatcmpl-1", ["a"])
    (view,) = view_session(tracked.tracker, "chatcmpl-1", ["a"], with_ended=True)
    assert view.session == "other"
    assert view.summary is not None
    assert view.summary.request_ids == ["chatcmpl-1"]
    assert view_session(tracked.tracker, "chatcmpl-1", ["b"], with_ended=True) == []


def test_jobs_are_listed_with_as_many_turns_as_are_asked_for() -> None:
    tracked = Tracked()
    for turn in range(3):
        for number in range(4):
            tracked.turn(f"{number} {turn}", [*ASKED, number], session=str(number))
    release(tracked.tracker, "0")
    core = make_core(tracked)

    def list_jobs(first: int, jobs: int, turns: int) -> list[tuple[str, list[int]]]:
        return [
            (job["session"], [turn["turn"] for turn in job["turns"]])
            for job in call(core, JOBS_METHOD, first, jobs, turns) or []
        ]

    assert list_jobs(0, 10, 1) == [("3", [2]), ("2", [2]), ("1", [2]), ("0", [2])]
    assert list_jobs(2, 10, 2) == [("1", [1, 2]), ("0", [1, 2])]
    assert list_jobs(0, 1, 64) == [("3", [0, 1, 2])]


def test_a_session_of_many_tenants_is_viewed_and_ended_in_parts() -> None:
    tracked = Tracked(max_jobs=1000)
    for number in range(300):
        for turn in range(5):
            tracked.turn(f"{number} {turn}", ASKED, session="mine", salt=str(number))
    views = view_session(tracked.tracker, "mine")
    assert (len(views), sum(len(view.turns) for view in views)) == (256, 1024)
    assert [len(release(tracked.tracker, "mine")) for _ in range(3)] == [256, 44, 0]


def test_the_id_of_a_reply_finds_its_job() -> None:
    tracked = Tracked()
    tracked.turn("chatcmpl-9f8e-0a1b2c3d", ASKED, session="mine", salt="a")
    tracked.turn("resp_77_0-0a1b2c3d", ASKED, salt="b")
    tracker = tracked.tracker
    assert [view.session for view in view_session(tracker, "chatcmpl-9f8e")] == ["mine"]
    assert len(view_session(tracker, "resp_77", ["b"])) == 1
    cut = tracked.ask("chatcmpl-5-0a1b2c3d", ASKED, session="cut off")
    tracked.admit(cut)
    tracked.reply(cut, status=RequestStatus.FINISHED_LENGTH_CAPPED)
    assert [view.session for view in view_session(tracker, "chatcmpl-5")] == ["cut off"]
    assert view_session(tracker, "chatcmpl-9f8e", ["b"]) == []
    assert view_session(tracker, "chatcmpl-9f") == []
    assert release(tracker, "chatcmpl-9f8e") == ["mine"]
    assert view_session(tracker, "mine") == []


def test_a_release_by_a_reply_tells_the_session_as_it_was_named() -> None:
    tracked = Tracked()
    for number, session in enumerate(["é" * 200, "x" * 300, None]):
        tracked.turn(f"chatcmpl-{number}-0a1b2c3d", [*ASKED, number], session=session)
    tracker = tracked.tracker
    assert release(tracker, "chatcmpl-0") == ["é" * 200]
    assert release(tracker, "x" * 300) == ["x" * 300]
    assert release(tracker, "chatcmpl-2") == [None]


def test_sessions_that_were_idle_for_too_long_are_told_once() -> None:
    tracked = Tracked(max_jobs=5)
    for session, salt in (("gone", None), ("back", None), ("shared", None), ("over", None), (None, None)):
        tracked.turn(f"of {session}", ASKED, session=session, salt=salt)
    release(tracked.tracker, "over")
    tracked.clock.now_s += 4000
    tracked.turn("again", ASKED, session="back")
    tracked.turn("other tenant's", ASKED, session="shared", salt="t")
    told = take_expired(tracked.tracker)
    assert set(told) == {"gone", None}
    assert take_expired(tracked.tracker) == []


def test_sessions_that_expire_at_once_are_told_in_parts() -> None:
    tracked = Tracked(max_jobs=1000)
    for number in range(MAX_EXPIRED + 20):
        tracked.turn(str(number), ASKED, session=str(number))
    tracked.clock.now_s += 4000
    assert [len(take_expired(tracked.tracker)) for _ in range(3)] == [MAX_EXPIRED, 20, 0]


def test_requests_of_a_step_expire_no_more_jobs_than_one() -> None:
    tracked = Tracked(max_jobs=1000)
    for number in range(2 * MAX_EXPIRED):
        tracked.turn(str(number), ASKED, session=str(number))
    tracked.tracker.step()
    tracked.clock.now_s += 4000
    for number in range(4):
        tracked.turn(f"new {number}", ASKED, session=f"new {number}")
    assert len(tracked.tracker.runtime.jobs) == MAX_EXPIRED + 4
    tracked.tracker.step()
    assert len(tracked.tracker.runtime.jobs) == 4


def test_a_request_of_an_overdue_job_is_counted_once() -> None:
    tracked = Tracked(max_jobs=1000)
    for number in range(MAX_EXPIRED + 1):
        tracked.turn(str(number), ASKED, session=str(number))
    tracked.clock.now_s += 4000
    # The other jobs expire first, up to the limit of one step.
    tracked.turn("late", ASKED, session=str(MAX_EXPIRED))
    counts = count_runtime(tracked.tracker)
    assert counts.found_jobs == {"named": MAX_EXPIRED + 2}
    assert counts.jobs == 1


def test_an_id_of_any_length_is_kept_short() -> None:
    tracked = Tracked()
    name = "x" * 100_000
    tracked.turn(f"{name}-0a1b2c3d", ASKED, session="mine")
    assert [view.session for view in view_session(tracked.tracker, name)] == ["mine"]
    assert max(map(len, list_kept(tracked.tracker.finder, str))) <= 64
