from __future__ import annotations

import pytest
from sizes import pick_size
from tracked_requests import ASKED, BASH, BLOCK, SYSTEM, TASK, Tracked, count_chains
from vllm.v1.request import RequestStatus

from agentcache._evictor import FreeContext
from agentcache.engine.jobs.finish_classes import OVER, UNKNOWN
from agentcache.engine.rpc.core_calls import release
from agentcache.engine.rpc.job_views import count_runtime, view_ended, view_jobs, view_session
from agentcache.policy.runtime_policy import Order, RuntimePolicy
from tool_runtime.learning.tool_key import ToolKey


def test_turns_of_a_session_are_one_job_whatever_they_say() -> None:
    tracked = Tracked()
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    tracked.clock.now_s += 5
    tracked.turn("b", [*known, 5], session="s")
    tracked.turn("c", [9] * 7, session="s")
    (view,) = view_session(tracked.tracker, "s")
    assert (view.session, view.turn_count, view.call_count, view.is_over) == ("s", 3, 1, False)
    assert [turn.turn for turn in view.turns] == [0, 1, 2]
    assert [(turn.tools, turn.arrived_s) for turn in view.turns[:2]] == [(("bash",), 1000.0), ((), 1006.0)]
    assert tracked.learned() == (1, 5.0)
    assert count_runtime(tracked.tracker).tools["bash"].seconds == 5.0


def test_turns_without_a_session_are_told_by_what_they_repeat() -> None:
    tracked = Tracked()
    known = tracked.turn("a", ASKED, calls=[BASH])
    tracked.turn("other", [*SYSTEM, *[3] * 2 * BLOCK])
    tracked.clock.now_s += 4
    tracked.turn("b", [*known, 5])
    assert tracked.turns_of("a") == [[0, 1]]
    assert tracked.turns_of("other") == [[0]]
    assert tracked.learned() == (1, 5.0)


def test_a_session_goes_on_when_its_client_stops_naming_it() -> None:
    tracked = Tracked()
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    tracked.turn("b", [*known, 5])
    assert tracked.turns_of("s") == [[0, 1]]


def test_tenants_share_no_job_under_one_name_and_the_same_words() -> None:
    tracked = Tracked()
    for salt in ("one", "two", None):
        tracked.turn(f"{salt} a", ASKED, session="s", salt=salt, calls=[BASH])
        tracked.turn(f"{salt} b", ASKED, session="s", salt=salt)
    tracked.turn("told by its name", ASKED, session="one a")
    tracked.turn("told by nothing", ASKED, salt="one")
    assert tracked.turns_of("s") == [[0, 1]] * 3
    assert len(tracked.runtime.jobs) == 5
    assert [view.session for view in view_jobs(tracked.tracker)] == ["told by nothing", "one a", "s", "s", "s"]
    tracked.tracker.check_integrity()


@pytest.mark.parametrize("salt", [None, "tenant"])
def test_ids_of_10_mb_are_followed_like_others_and_kept_short(salt: str | None) -> None:
    tracked = Tracked()
    session, request = "s" * 10_000_000, "r" * 10_000_000
    known = tracked.turn(request + "a", ASKED, session=session, salt=salt, calls=[BASH])
    tracked.clock.now_s += 2
    tracked.turn(request + "b", [*known, 5], session=session, salt=salt)
    (view,) = view_session(tracked.tracker, session)
    assert (view.turn_count, len(view.session) < 80) == (2, True)
    assert view.turns[1].recomputed_tokens > 0
    assert [each.session for each in view_jobs(tracked.tracker)] == [view.session]
    assert tracked.learned() == (1, 2.0)
    assert view_session(tracked.tracker, session + "s") == []
    assert release(tracked.tracker, session)
    assert count_runtime(tracked.tracker).jobs_ended == {"job over": 1}
    assert not tracked.tracker.stats.jobs
    assert (count_chains(tracked.tracker), tracked.tracker.states) == (0, {})


def test_many_sessions_leave_no_more_than_the_table_holds() -> None:
    sessions = pick_size(3_000, 100_000)
    tracked = Tracked(max_jobs=50)
    for number in range(sessions):
        request = tracked.ask("r", [number], session=f"{number}", salt="t" if number % 2 else None)
        tracked.reply(request, tokens=1)
    tracker = tracked.tracker
    assert len(tracker.stats.jobs) <= 51
    assert (count_chains(tracker), tracker.states) == (0, {})
    # A late token belongs to no request.
    tracked.give_tokens("r")
    tracker.step()
    assert len(tracker.stats.jobs) == len(tracked.runtime.jobs) == 50
    assert count_runtime(tracker).jobs_ended == {"table full": sessions - 50}
    tracker.check_integrity()


def test_jobs_that_leave_all_at_once_leave_nothing_behind() -> None:
    tracked = Tracked(max_jobs=3)
    requests = [tracked.ask(f"{number}", [number] * 9, session=f"{number}") for number in range(40)]
    for request in requests:
        tracked.reply(request)
    tracked.tracker.step()
    assert len(tracked.tracker.stats.jobs) == len(tracked.runtime.jobs) == 3
    assert count_runtime(tracked.tracker).jobs_ended == {"table full": 37}


def test_sub_agents_without_a_session_are_jobs_of_their_own() -> None:
    tracked = Tracked()
    main = tracked.turn("main", ASKED, calls=[TASK])
    sub = tracked.turn("sub", [*SYSTEM, *[7] * 9], calls=[BASH])
    tracked.clock.now_s += 2
    tracked.turn("sub b", [*sub, 5])
    tracked.turn("main b", [*main, 6])
    assert tracked.turns_of("main") == [[0, 1]]
    assert tracked.turns_of("sub") == [[0, 1]]
    assert (tracked.learned("bash"), tracked.learned("task")) == ((1, 2.0), (1, 4.0))


def test_parallel_turns_of_a_session_differ_by_what_they_repeat() -> None:
    tracked = Tracked()
    one = tracked.ask("one", ASKED, session="s", calls=[TASK])
    two = tracked.ask("two", [*SYSTEM, *[3] * 9], session="s", calls=[BASH])
    (view,) = view_session(tracked.tracker, "s")
    assert (view.running, view.waits_for) == (2, ())
    (_, first), (_, second) = tracked.reply(one), tracked.reply(two)
    (view,) = view_session(tracked.tracker, "s")
    assert (view.running, view.waits_for) == (0, ("task", "bash"))
    tracked.clock.now_s += 3
    tracked.turn("two b", [*second, 5], session="s")
    tracked.clock.now_s += 3
    tracked.turn("one b", [*first, 5], session="s")
    assert tracked.turns_of("s") == [[0, 1, 2, 3]]
    assert (tracked.learned("bash"), tracked.learned("task")) == ((1, 3.0), (1, 7.0))


def test_a_turn_with_several_unknown_predecessors_is_no_lesson() -> None:
    """It may go on from any of them, so no gap is learned."""
    tracked = Tracked()
    requests = [tracked.ask(name, [*SYSTEM, *[ord(name)] * 9], session="s", calls=[BASH]) for name in "ab"]
    for request in requests:
        tracked.reply(request)
    tracked.clock.now_s += 3
    tracked.turn("c", [*SYSTEM, 9], session="s")
    assert tracked.learned() == (0, None)
    assert count_runtime(tracked.tracker).tools == {}


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (RequestStatus.FINISHED_ABORTED, "aborted"),
        (RequestStatus.FINISHED_LENGTH_CAPPED, "cut off"),
        (RequestStatus.FINISHED_REPETITION, "cut off"),
        (RequestStatus.FINISHED_ERROR, "failed"),
        (RequestStatus.FINISHED_IGNORED, "failed"),
    ],
)
def test_a_turn_that_came_to_nothing_teaches_nothing(status: RequestStatus, word: str) -> None:
    tracked = Tracked()
    request = tracked.ask("a", ASKED, session="s", calls=None)
    tracked.admit(request)
    context, _ = tracked.reply(request, status=status)
    assert context == FreeContext(finish_class=UNKNOWN, job=1)
    tracked.clock.now_s += 5
    tracked.turn("b", ASKED, session="s")
    (view,) = view_session(tracked.tracker, "s")
    assert [turn.status for turn in view.turns] == [word, "finished"]
    assert (view.turn_count, view.failure_count) == (1, 1)
    assert (tracked.learned(), tracked.learned("")) == ((0, None), (0, None))
    assert count_runtime(tracked.tracker).tools == {}


def test_a_request_that_is_aborted_while_it_waits_never_ran() -> None:
    tracked = Tracked()
    request = tracked.ask("a", ASKED, session="s")
    tracked.reply(request, tokens=0, status=RequestStatus.FINISHED_ABORTED)
    (turn,) = view_session(tracked.tracker, "s")[0].turns
    assert (turn.scheduled_s, turn.first_token_s, turn.cached_tokens, turn.output_tokens) == (None, None, 0, 0)
    tracked.give_tokens("a")


def test_a_dictated_reply_that_ends_at_its_length_is_whole() -> None:
    tracked = Tracked()
    request = tracked.ask("a", ASKED, session="s", calls=[BASH])
    tracked.reply(request, status=RequestStatus.FINISHED_LENGTH_CAPPED)
    (view,) = view_session(tracked.tracker, "s")
    assert (view.turns[0].status, view.waits_for) == ("finished", ("bash",))


def test_a_reply_of_the_length_that_its_client_wants_is_whole() -> None:
    """Load generators ask for exactly so many tokens; their sessions go on all the same."""
    tracked = Tracked()
    request = tracked.ask("a", ASKED, session="s", calls=None)
    assert request.sampling_params is not None
    request.sampling_params.ignore_eos = True
    context, _ = tracked.reply(request, status=RequestStatus.FINISHED_LENGTH_CAPPED)
    (view,) = view_session(tracked.tracker, "s")
    assert (view.turns[0].status, view.turn_count, view.failure_count) == ("finished", 1, 0)
    assert context.finish_class != UNKNOWN
    # Its text says nothing, so its job may well come back, and counts to its engine's load.
    assert not tracked.is_marked_answer("a")
    tracked.clock.now_s += 3
    tracked.turn("b", ASKED, session="s")
    assert tracked.learned("") == (1, 3.0)


def test_a_job_given_up_teaches_that_its_tool_did_not_return() -> None:
    tracked = Tracked()
    tracked.turn("a", ASKED, session="s", calls=[BASH])
    tracked.clock.now_s += 3601
    tracked.tracker.step()
    assert tracked.learned() == (0, None)
    history = tracked.runtime.durations.history(ToolKey("bash"))
    assert history.evidence > 0
    assert history.curve.returned_within(60) < Tracked().runtime.durations.history(
        ToolKey("bash")
    ).curve.returned_within(60)
    (view,) = view_ended(tracked.tracker.stats, tracked.tracker.clock())
    assert (view.session, view.is_over, view.waits_for) == ("s", True, ("bash",))
    assert count_runtime(tracked.tracker).jobs_ended == {"expired": 1}
    assert view_session(tracked.tracker, "s") == []


def test_a_job_that_comes_back_after_its_time_begins_anew() -> None:
    tracked = Tracked()
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    tracked.clock.now_s += 4000
    # No step in between: the engine was idle.
    tracked.turn("b", [*known, 5], session="s")
    assert tracked.turns_of("s") == [[0]]
    assert count_runtime(tracked.tracker).jobs_ended == {"expired": 1}
    tracked.tracker.step()
    assert tracked.turns_of("s") == [[0]]


def test_a_released_session_may_begin_anew_before_the_next_step() -> None:
    tracked = Tracked()
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    tracked.turn("salted", ASKED, session="s", salt="t")
    assert release(tracked.tracker, "s")
    assert not release(tracked.tracker, "s")
    assert view_session(tracked.tracker, "s") == []
    request = tracked.ask("b", [*known, 5], session="s")
    tracked.tracker.step()
    tracked.admit(request)
    tracked.reply(request)
    tracked.tracker.step()
    assert tracked.turns_of("s") == [[0]]
    assert [view.turn_count for view in view_ended(tracked.tracker.stats, tracked.tracker.clock())] == [1, 1]
    assert tracked.learned() == (0, None)


def test_one_tenants_job_is_over_without_those_of_others() -> None:
    tracked = Tracked()
    for tenant in (None, "t", "u"):
        tracked.turn(f"of {tenant}", ASKED, session="s", salt=tenant)
    assert release(tracked.tracker, "s", ["t"])
    assert not release(tracked.tracker, "s", ["t"])
    assert len(view_session(tracked.tracker, "s")) == 2
    assert release(tracked.tracker, "s", [None, "unknown"])
    assert release(tracked.tracker, "s")
    assert not view_session(tracked.tracker, "s")


def test_a_job_that_a_full_table_dropped_may_return_at_once() -> None:
    tracked = Tracked(max_jobs=1)
    tracked.turn("a", ASKED, session="s")
    tracked.turn("b", ASKED, session="t")
    request = tracked.ask("c", ASKED, session="s")
    tracked.tracker.step()
    tracked.reply(request)
    tracked.tracker.step()
    assert tracked.turns_of("s") == [[0]]
    assert count_runtime(tracked.tracker).jobs_ended == {"table full": 2}
    tracked.tracker.check_integrity()


def test_a_session_released_as_it_runs_ends_with_its_last_reply() -> None:
    tracked = Tracked()
    request = tracked.ask("a", ASKED, session="s", calls=[BASH])
    assert release(tracked.tracker, "s")
    (view,) = view_session(tracked.tracker, "s")
    assert (view.is_over, view.running) == (True, 1)
    context, known = tracked.reply(request)
    assert context == FreeContext(finish_class=OVER, job=1)
    tracked.tracker.step()
    assert view_session(tracked.tracker, "s") == []
    tracked.turn("b", [*known, 5])
    assert [view.session for view in view_jobs(tracked.tracker)] == ["b"]


def test_a_reset_forgets_what_is_cached_and_not_whose_turn_it_is() -> None:
    tracked = Tracked()
    known = tracked.turn("a", ASKED, calls=[BASH])
    tracked.tracker.reset()
    tracked.clock.now_s += 2
    tracked.turn("b", [*known, 5])
    (view,) = view_session(tracked.tracker, "a")
    assert [(turn.turn, turn.recomputed_tokens) for turn in view.turns] == [(0, 0), (1, 0)]
    assert tracked.learned() == (1, 2.0)


def test_a_clock_that_jumps_back_teaches_and_stops_nothing() -> None:
    tracked = Tracked(RuntimePolicy(factors=True, order=Order(patience_s=30.0)))
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    tracked.clock.now_s -= 500
    request = tracked.ask("b", [*known, 5], session="s")
    tracked.clock.now_s -= 5
    tracked.admit(request)
    tracked.clock.now_s -= 5
    tracked.reply(request)
    tracked.tracker.step()
    assert (tracked.learned(), tracked.evictor.gaps_s) == ((0, None), [])
    assert tracked.runtime.load.evicted_wait_s == 0.0
    tracked.clock.now_s += 3
    tracked.turn("c", ASKED, session="s")
    assert tracked.learned("") == (1, 3.0)
    tracked.tracker.check_integrity()
