"""Several agents under one session: a sub-agent's first prompt is nobody's continuation."""

from __future__ import annotations

import pytest
from tracked_requests import BASH, BLOCK, SYSTEM, TASK, Tracked

LONG = [*SYSTEM, *range(100, 100 + 8 * BLOCK)]


def test_two_sub_agents_run_beside_their_session_s_main_agent() -> None:
    tracked = Tracked()
    main = tracked.turn("main", LONG, session="s", calls=[TASK, TASK])
    tracked.clock.now_s += 1
    subs = [tracked.ask(f"sub {n}", [*SYSTEM, *[n] * 9], session="s", calls=[BASH]) for n in (7, 8)]
    (view,) = tracked.tracker.view_session("s")
    assert (view.running, view.waits_for) == (2, ("task",)), "nobody has answered the main agent yet"
    known = [tracked.reply(request)[1] for request in subs]
    tracked.clock.now_s += 2
    again = [tracked.ask(f"again {n}", [*tokens, 5], session="s") for n, tokens in enumerate(known)]
    for request in reversed(again):
        tracked.reply(request)
    tracked.clock.now_s += 3
    tracked.turn("main again", [*main, 6], session="s")
    assert (tracked.learned("bash"), tracked.learned("task")) == ((2, 2.0), (1, 6.0))
    assert tracked.learned("") == (0, None)
    assert tracked.turns_of("s") == [[0, 1, 2, 4, 3, 5]], "in the order in which they ended"
    tracked.tracker.check_integrity()


def test_a_sub_agent_leaves_the_main_agent_s_pin_and_chain() -> None:
    tracked = Tracked()
    main = tracked.turn("main", LONG, session="s", calls=[TASK])
    tracked.turn("sub", [*SYSTEM, *[7] * 9], session="s")
    request = tracked.ask("main again", [*main, 6], session="s")
    tracked.admit(request, cached_tokens=BLOCK)
    tracked.reply(request)
    view = tracked.tracker.view_session("s")[0]
    assert view.turns[2].recomputed_tokens == (len(main) - 1) // BLOCK * BLOCK - BLOCK
    assert view.waits_for == ()


def test_a_chat_that_was_edited_near_its_end_goes_on() -> None:
    tracked = Tracked()
    tracked.turn("a", LONG, session="s", calls=[BASH])
    tracked.clock.now_s += 4
    tracked.turn("b", [*LONG[: 6 * BLOCK], *[7] * 20], session="s")
    assert tracked.learned() == (1, 4.0)
    assert tracked.tracker.view_session("s")[0].turns[1].diverged_at == 6 * BLOCK


def test_a_chat_that_began_anew_teaches_nothing() -> None:
    tracked = Tracked()
    tracked.turn("a", LONG, session="s", calls=[BASH])
    tracked.clock.now_s += 4
    tracked.turn("b", [*LONG[: 4 * BLOCK], *[7] * 20], session="s")
    (view,) = tracked.tracker.view_session("s")
    assert (tracked.learned(), view.waits_for) == ((0, None), ("bash",))


def test_a_third_sub_agent_is_taken_for_neither_of_two_alike() -> None:
    """All three begin alike."""
    tracked = Tracked()
    for request in [tracked.ask(name, [*LONG, *[ord(name)] * 9], session="s", calls=[BASH]) for name in "ab"]:
        tracked.reply(request)
    tracked.turn("c", [*LONG, *[9] * 9], session="s")
    assert tracked.tracker.view_session("s")[0].waits_for == ("bash", "bash")


@pytest.mark.parametrize("forget", [True, False])
def test_a_turn_continues_the_last_if_nothing_is_known_of_that(forget: bool) -> None:
    """Within a session it is taken for the next turn, and its gap is learned."""
    tracked = Tracked()
    # Without a full block, or with one that nobody remembers.
    tracked.turn("a", LONG if forget else [], session="s", calls=[BASH])
    if forget:
        tracked.tracker.reset()
    tracked.clock.now_s += 4
    tracked.turn("b", [9] * 9, session="s")
    assert tracked.learned() == (1, 4.0)
