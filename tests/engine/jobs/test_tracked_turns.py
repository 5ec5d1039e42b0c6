from __future__ import annotations

import math

import pytest
from tracked_requests import ASKED, BASH, BLOCK, LOSS_S, SYSTEM, TASK, Tracked

from agentcache._evictor import FreeContext
from agentcache.engine.jobs.finish_classes import OVER, PREEMPTED, UNKNOWN
from agentcache.engine.order.job_queue import ORDINARY
from agentcache.engine.request_state import QueuePriority
from agentcache.engine.rpc.job_views import count_runtime, view_session
from agentcache.policy.runtime_policy import Order, RuntimePolicy


def test_the_times_of_a_turn() -> None:
    tracked = Tracked()
    request = tracked.ask("a", ASKED, session="s")
    tracked.clock.now_s += 2
    tracked.admit(request, cached_tokens=8)
    tracked.clock.now_s += 3
    # Preempted, and admitted again.
    assert tracked.tracker.on_free(request) == FreeContext(finish_class=PREEMPTED, job=1)
    tracked.admit(request, cached_tokens=0)
    tracked.give_tokens("unknown")
    tracked.give_tokens("a")
    tracked.clock.now_s += 4
    tracked.give_tokens("a")
    tracked.reply(request)
    (turn,) = view_session(tracked.tracker, "s")[0].turns
    assert (turn.arrived_s, turn.scheduled_s, turn.first_token_s, turn.finished_s) == (1000, 1002, 1005, 1009)
    assert (turn.prompt_tokens, turn.cached_tokens, turn.output_tokens) == (16, 8, 4)


def test_the_first_token_may_be_the_last() -> None:
    tracked = Tracked()
    request = tracked.ask("a", ASKED, session="s")
    tracked.admit(request)
    tracked.clock.now_s += 3
    # vLLM frees the request before it hands out the step's tokens.
    tracked.reply(request, tokens=1)
    tracked.give_tokens("a")
    assert view_session(tracked.tracker, "s")[0].turns[0].first_token_s == 1003


def test_what_a_turn_left_and_the_next_does_not_find_was_lost() -> None:
    tracked = Tracked()
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    assert len(known) == 5 * BLOCK
    tracked.clock.now_s += 1
    request = tracked.ask("b", [*known, *[8] * 9], session="s")
    tracked.clock.now_s += 2
    tracked.admit(request, cached_tokens=BLOCK)
    tracked.reply(request)
    turn = view_session(tracked.tracker, "s")[0].turns[1]
    # Four blocks were left: the KV of a turn's last token is never computed.
    assert (turn.recomputed_tokens, turn.diverged_at) == (3 * BLOCK, None)
    assert count_runtime(tracked.tracker).recomputed_tokens == 3 * BLOCK
    assert tracked.runtime.load.evicted_wait_s == 2.0
    assert tracked.runtime.load.price(1.0, queued=False) == pytest.approx(3 * LOSS_S * math.log(2) / 60)


def test_nothing_was_lost_when_all_that_can_be_hit_is_hit() -> None:
    tracked = Tracked()
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    request = tracked.ask("b", [*known, 8], session="s")
    tracked.admit(request, cached_tokens=4 * BLOCK)
    tracked.reply(request)
    # The same prompt once more: vLLM computes its last token anew, and so its last block.
    request = tracked.ask("c", known, session="s")
    tracked.admit(request, cached_tokens=4 * BLOCK)
    tracked.reply(request)
    assert [turn.recomputed_tokens for turn in view_session(tracked.tracker, "s")[0].turns] == [0, 0, 0]
    assert tracked.runtime.load.price(1.0, queued=False) == 0


@pytest.mark.parametrize("session", ["s", None])
def test_a_turn_whose_reply_fills_no_block_is_continued(session: str | None) -> None:
    tracked = Tracked()
    known = tracked.turn("a", ASKED, session=session, calls=[BASH])
    tracked.clock.now_s += 2
    request = tracked.ask("b", [*known, *[8] * BLOCK], session=session, calls=[BASH])
    _, known = tracked.reply(request, tokens=1)
    tracked.clock.now_s += 4
    tracked.turn("c", [*known, 9], session=session)
    assert tracked.learned() == (2, 3.0)
    (view,) = view_session(tracked.tracker, session or "a")
    assert (len(view.turns), view.waits_for) == (3, ())


def test_asking_again_does_not_continue_the_first_answer() -> None:
    tracked = Tracked()
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    tracked.reply(tracked.ask("b", [*known, *[8] * BLOCK], session="s", calls=[TASK]), tokens=1)
    tracked.clock.now_s += 4
    tracked.turn("another b", [*known, *[5] * BLOCK], session="s")
    assert tracked.learned("task") == (0, None)
    assert view_session(tracked.tracker, "s")[0].waits_for == ("task",)


def test_an_edited_prompt_is_seen_where_it_leaves_its_turn() -> None:
    tracked = Tracked()
    tracked.turn("a", ASKED, session="s", calls=[BASH])
    tracked.turn("b", [*SYSTEM, *[6] * 20], session="s")
    turn = view_session(tracked.tracker, "s")[0].turns[1]
    assert (turn.diverged_at, turn.recomputed_tokens) == (2 * BLOCK, 2 * BLOCK)


def test_requests_that_are_nobodys_turn_are_let_through() -> None:
    tracked = Tracked()
    request = tracked.ask("a", ASKED)
    other = Tracked()
    other.admit(request)
    assert other.reply(request)[0] == FreeContext()
    assert other.tracker.priority_of(request) == QueuePriority(ORDINARY, 1000.0, 1000.0, by_arrival=True)


def test_how_a_turn_ended_is_told_by_a_number() -> None:
    tracked = Tracked()
    ends = {}
    for name, calls in (("human", []), ("bash", [BASH]), ("task", [TASK]), ("both", [TASK, BASH])):
        contexts = [
            tracked.reply(tracked.ask(f"{name} {number}", [number] * 9, session=f"{name} {number}", calls=calls))[0]
            for number in range(2)
        ]
        assert contexts[0].finish_class == contexts[1].finish_class
        assert contexts[0].factor == 1.0
        assert contexts[0].job != contexts[1].job
        ends[name] = contexts[0].finish_class
    assert len(set(ends.values())) == 4
    assert not set(ends.values()) & {UNKNOWN, PREEMPTED, OVER}


@pytest.mark.parametrize("factors", [True, False])
def test_the_evictor_gets_gaps_and_factors_only_by_policy(factors: bool) -> None:
    """A policy without correction factors is told neither."""
    tracked = Tracked(RuntimePolicy(factors=factors))
    contexts, known = [], ASKED
    for number in range(12):
        request = tracked.ask(f"{number}", known, session="s", calls=[BASH])
        context, known = tracked.reply(request)
        contexts.append(context.factor)
        tracked.clock.now_s += 2
    assert tracked.learned() == (11, 2.0)
    if factors:
        assert tracked.evictor.gaps_s == [2.0] * 11
        assert contexts[0] == 1.0
        assert contexts[-1] > 1.0
    else:
        assert tracked.evictor.gaps_s == []
        assert set(contexts) == {1.0}


def test_uncertain_gaps_do_not_reach_the_evictor() -> None:
    tracked = Tracked(RuntimePolicy(factors=True))
    for request in [tracked.ask(name, [ord(name)] * 9, session="s", calls=[BASH]) for name in "ab"]:
        tracked.reply(request)
    # Now nothing is known of what the two had said.
    tracked.tracker.reset()
    tracked.turn("c", [3] * 9, session="s")
    (view,) = view_session(tracked.tracker, "s")
    assert view.waits_for == ("bash",), "it was taken for one of them"
    assert (tracked.learned(), tracked.evictor.gaps_s) == ((0, None), [])


def test_hash_blocks_smaller_than_kv_blocks_count_by_their_size() -> None:
    tracked = Tracked(hash_block=2)
    known = tracked.turn("a", ASKED, session="s", calls=[BASH])
    request = tracked.ask("b", [*known, *[8] * 9], session="s")
    tracked.admit(request, cached_tokens=8)
    tracked.reply(request)
    turn = view_session(tracked.tracker, "s")[0].turns[1]
    # The turn left 19 tokens, so 18 in whole blocks of two.
    assert (turn.recomputed_tokens, turn.diverged_at) == (10, None)
    assert tracked.runtime.load.price(1.0, queued=False) == pytest.approx(10 / BLOCK * LOSS_S * math.log(2) / 60)
    edited = tracked.ask("c", [*SYSTEM, *[7] * 9], session="s")
    tracked.reply(edited)
    tracked.turn("d", [*edited.all_token_ids][:15], session="s")
    assert view_session(tracked.tracker, "s")[0].turns[3].diverged_at == 14


def test_first_come_first_served_without_an_order() -> None:
    tracked = Tracked()
    tracked.turn("a", ASKED, session="s")
    tracked.clock.now_s = 1100
    assert tracked.tracker.priority_of(tracked.ask("b", ASKED, session="s")) == QueuePriority(ORDINARY, 1100.0, 1100.0)


@pytest.mark.parametrize(("seniority_s", "time_s"), [(math.inf, 1000.0), (30.0, 1070.0), (300.0, 1000.0)])
def test_the_age_of_a_job_counts_up_to_a_bound(seniority_s: float, time_s: float) -> None:
    tracked = Tracked(RuntimePolicy(order=Order(seniority_s=seniority_s)))
    tracked.turn("a", ASKED, session="s")
    tracked.clock.now_s = 1100
    request = tracked.ask("b", ASKED, session="s")
    assert tracked.tracker.priority_of(request) == QueuePriority(ORDINARY, time_s, 1100.0)
    tracked.clock.now_s = 1200
    tracked.tracker.step()
    assert tracked.tracker.priority_of(request) == QueuePriority(ORDINARY, time_s, 1100.0), "it keeps its place"
    new = tracked.ask("new", ASKED, session="new")
    assert tracked.tracker.priority_of(new) == QueuePriority(ORDINARY, 1200.0, 1200.0)
