"""Several agents under one session: a sub-agent's first prompt is nobody's continuation."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from told_requests import END, answer, ask_told
from tracked_requests import BASH, BLOCK, SYSTEM, TASK, Tracked

from agentcache.engine.rpc.job_views import view_session
from tool_runtime.agent.job import ToolCall

Chat = list[tuple[str, list[int]]]

# System message and tools are nearly all of a prompt.
KIND = ("s", [1] * 24 * BLOCK)
FOUND = ("t", [9] * 3)
LONG = [*SYSTEM, *range(100, 100 + 8 * BLOCK)]


def test_two_sub_agents_run_beside_their_session_s_main_agent() -> None:
    tracked = Tracked()
    main = tracked.turn("main", LONG, session="s", calls=[TASK, TASK])
    tracked.clock.now_s += 1
    subs = [tracked.ask(f"sub {n}", [*SYSTEM, *[n] * 9], session="s", calls=[BASH]) for n in (7, 8)]
    (view,) = view_session(tracked.tracker, "s")
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
    view = view_session(tracked.tracker, "s")[0]
    assert view.turns[2].recomputed_tokens == (len(main) - 1) // BLOCK * BLOCK - BLOCK
    assert view.waits_for == ()


def test_a_chat_that_was_edited_near_its_end_goes_on() -> None:
    tracked = Tracked()
    tracked.turn("a", LONG, session="s", calls=[BASH])
    tracked.clock.now_s += 4
    tracked.turn("b", [*LONG[: 6 * BLOCK], *[7] * 20], session="s")
    assert tracked.learned() == (1, 4.0)
    assert view_session(tracked.tracker, "s")[0].turns[1].diverged_at == 6 * BLOCK


def test_a_chat_that_began_anew_teaches_nothing() -> None:
    tracked = Tracked()
    tracked.turn("a", LONG, session="s", calls=[BASH])
    tracked.clock.now_s += 4
    tracked.turn("b", [*LONG[: 4 * BLOCK], *[7] * 20], session="s")
    (view,) = view_session(tracked.tracker, "s")
    assert (tracked.learned(), view.waits_for) == ((0, None), ("bash",))


def test_a_third_sub_agent_is_taken_for_neither_of_two_alike() -> None:
    """All three begin alike."""
    tracked = Tracked()
    for request in [tracked.ask(name, [*LONG, *[ord(name)] * 9], session="s", calls=[BASH]) for name in "ab"]:
        tracked.reply(request)
    tracked.turn("c", [*LONG, *[9] * 9], session="s")
    assert view_session(tracked.tracker, "s")[0].waits_for == ("bash", "bash")


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


class Session:
    """Agents of one session, each of whose turns calls a tool that has the agent's name."""

    def __init__(self) -> None:
        self.tracked = Tracked()
        self.chats: dict[str, Chat] = {}
        # What each has said last.
        self.said: dict[str, list[int]] = {}
        self._turns = 0

    def begin(self, name: str, *examples: tuple[str, list[int]], task: int | None = None, **options: Any) -> None:
        self.chats[name] = [KIND, *examples, ("u", [task or sum(name.encode()), 7])]
        self.go_on(name, **options)

    def go_on(self, name: str, *more: tuple[str, list[int]], calls: bool = True, **options: Any) -> None:
        """Ask with what has come since, a second later."""
        self.tracked.clock.now_s += 1
        chat = self.chats[name] = [*self.chats[name], *more]
        calls_of = [ToolCall(name, "{}")] if calls else []
        self._turns += 1
        request = ask_told(self.tracked, f"turn {self._turns}", chat, session="s", calls=calls_of, **options)
        self.tracked.admit(request)
        self.tracked.clock.now_s += 1
        self.tracked.reply(request, tokens=16)
        self.said[name] = list(request.output_token_ids)

    def bring(self, name: str, reply: list[int] | None = None, **options: Any) -> None:
        """Ask with the result of its call, the reply in other words."""
        self.go_on(name, ("a", reply or [8]), FOUND, **options)

    @property
    def waits(self) -> list[str]:
        """Whose call is not answered."""
        return sorted(view_session(self.tracked.tracker, "s")[0].waits_for)


def test_a_sub_agent_begins_while_another_of_its_kind_waits() -> None:
    session = Session()
    for name in ("main", "lamp", "rope"):
        session.begin(name)
    assert session.waits == ["lamp", "main", "rope"]
    session.bring("lamp", calls=False)
    assert session.waits == ["main", "rope"]
    assert session.tracked.learned("lamp") == (1, 3.0)
    assert (session.tracked.learned("main"), session.tracked.learned("rope")) == ((0, None), (0, None))


def test_forty_chats_of_one_name_go_on_each_from_its_own() -> None:
    session = Session()
    names = [f"chat {number}" for number in range(40)]
    for number, name in enumerate(names):
        session.begin(name, task=100 + number)
    for _ in range(2):
        for name in reversed(names):
            session.bring(name)
    assert len(session.waits) == 40
    assert [session.tracked.learned(name)[0] for name in names] == [2] * 40


@pytest.mark.parametrize("examples", [2, 3])
def test_a_chat_that_begins_with_examples_is_a_new_one(examples: int) -> None:
    session = Session()
    shots = [message for shot in range(examples) for message in (("u", [50 + shot] * 9), ("a", [60 + shot] * 9))]
    session.begin("main")
    session.begin("one", *shots[:4])
    session.begin("two", *shots)
    assert session.waits == ["main", "one", "two"]
    for name in ("one", "main", "two"):
        session.bring(name)
    assert session.tracked.learned("one") == (1, 3.0)
    assert session.waits == ["main", "one", "two"]


def test_a_reply_that_the_client_begins_is_not_the_model_s() -> None:
    session = Session()
    begun = ("a", [70, 71])
    session.begin("one")
    session.begin("two", ("u", [5]), begun, ("u", [6]))
    session.chats["three"] = [KIND, ("u", [33]), begun]
    session.go_on("three")
    assert session.waits == ["one", "three", "two"]
    session.chats["three"].pop()
    session.bring("three", [70, 71, 72])
    assert session.tracked.learned("three") == (1, 1.0)


def test_a_person_s_answer_is_seen_where_thoughts_are_hidden() -> None:
    """The template shows a thought behind the latest question alone, so the next one renders all before anew."""
    session = Session()
    thoughts = [40] * 5 * BLOCK
    session.begin("chat")
    session.bring("chat", [*thoughts, 8])
    session.bring("chat", [*thoughts, 8], calls=False)
    for question in range(3):
        session.chats["chat"] = [
            ("a", [8]) if letter == "a" else (letter, words) for letter, words in session.chats["chat"]
        ]
        session.tracked.clock.now_s += 10
        session.go_on("chat", ("a", [8]), ("u", [80 + question]))
        session.bring("chat", [*thoughts, 8], calls=False)
    assert session.tracked.learned("") == (3, 11.0)
    assert session.waits == []
    asked_again = view_session(session.tracked.tracker, "s")[0].turns[3::2]
    assert [turn.change is not None and turn.misses["changed"] > 0 for turn in asked_again] == [True] * 3


def test_a_summary_begins_a_new_thread() -> None:
    session = Session()
    session.begin("chat")
    session.bring("chat")
    session.go_on("chat", ("a", [8]), ("u", [90]))
    session.chats["summed up"] = [KIND, ("u", [91] * 9)]
    session.go_on("summed up")
    assert session.waits == ["chat", "summed up"]
    session.bring("summed up")
    assert session.waits == ["chat", "summed up"]
    assert session.tracked.learned("summed up") == (1, 1.0)


def test_a_history_that_lost_its_beginning_goes_on() -> None:
    session = Session()
    for name in ("other", "chat", "third"):
        session.begin(name)
    for _ in range(4):
        session.bring("chat", session.said["chat"])
        session.chats["chat"] = [KIND, *session.chats["chat"][-2:]]
    assert session.tracked.learned("chat")[0] == 4
    assert session.waits == ["chat", "other", "third"]


def test_a_retry_while_the_first_runs_is_one_job() -> None:
    tracked = Tracked()
    first, again = (ask_told(tracked, name, [KIND, ("u", [5])], session="s", calls=[BASH]) for name in ("a", "b"))
    answer(tracked, again)
    tracked.admit(first)
    tracked.reply(first, status=first.status.FINISHED_ABORTED)
    (view,) = view_session(tracked.tracker, "s")
    assert (view.waits_for, view.running, len(view.turns)) == (("bash",), 0, 2)
    assert tracked.learned() == (0, None)


def test_a_turn_that_was_cut_off_leaves_its_siblings_alone() -> None:
    """What goes on from it answers the sibling's question word for word, and is known to be another's."""
    session = Session()
    for name in ("one", "two"):
        session.begin(name)
    session.bring("two")
    chat = session.chats["two"] = [*session.chats["two"], ("a", [8]), FOUND]
    cut = ask_told(session.tracked, "cut", chat, session="s", calls=None)
    session.tracked.admit(cut)
    session.tracked.reply(cut, tokens=9, status=cut.status.FINISHED_LENGTH_CAPPED)
    session.go_on("two", ("a", [8]), ("u", [10]))
    assert session.waits == ["one", "two"]


def test_an_agent_s_name_decides_whose_turn_it_is() -> None:
    session = Session()
    session.begin("main")
    # With the main agent's whole history.
    session.chats["fork"] = [*session.chats["main"], ("a", [8]), ("u", [30])]
    session.go_on("fork", agent="a-1")
    assert session.waits == ["fork", "main"]
    # Several chats of one agent.
    session.begin("side", agent="a-1")
    assert session.waits == ["fork", "main", "side"]
    for name, agent in (("side", "a-1"), ("main", None), ("fork", "a-1")):
        session.bring(name, calls=False, agent=agent)
    assert session.waits == []
    assert session.tracked.learned("main") == (1, 7.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["plain", "thought", "hidden", "begun"])), max_size=30))
def test_whichever_agent_asks_goes_on_from_its_own_turn(steps: list[tuple[int, str]]) -> None:
    """Agents with one system message, equal results, replies in other words: each is told by what it was asked."""
    session = Session()
    turns: dict[str, int] = defaultdict(int)
    for number, how in steps:
        name = f"agent {number}"
        if name not in session.chats:
            session.begin(name, *([("u", [5]), ("a", [6] * 9)] if number % 2 else []))
        else:
            turns[name] += 1
            if how == "hidden":
                session.chats[name] = [(role, [END] if role == "a" else words) for role, words in session.chats[name]]
            session.bring(name, [40] * 9 if how == "thought" else None)
            if how == "begun":
                session.chats[name][-1:] = [FOUND, ("a", [70])]
                turns[name] += 1
                session.bring(name)
    assert session.waits == sorted(session.chats) if session.chats else not session.tracked.runtime.jobs.jobs
    for name, count in turns.items():
        assert session.tracked.learned(name)[0] == count
    session.tracked.tracker.check_integrity()
