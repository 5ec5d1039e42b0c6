"""Whose change it is that a prompt leaves the last turn: the client's, or the server's and its template's."""

from __future__ import annotations

from typing import Any

import pytest
from told_requests import END, answer, ask_told
from tracked_requests import BLOCK, Tracked

from agentcache.engine.constants import SENT_ARGUMENT
from agentcache.engine.marks import SentPrompt, read_sent
from agentcache.engine.rpc.job_views import view_session
from agentcache.engine.views import ChangeView

SYSTEM, OTHER = ("s", [1] * 4 * BLOCK), ("s", [1] * BLOCK + [2] * 3 * BLOCK)
ASKED, CALLED, RESULT = ("u", [5] * 20), ("a", [9] * 8), ("t", [7] * 9)


def find_change(
    now: list[tuple[str, list[int]]], sent: list[str], before: list[tuple[str, list[int]]] | None = None, **options: Any
) -> ChangeView | None:
    """Go on from a system message and a question; the client `sent` other messages than were rendered."""
    tracked, first = Tracked(), before or [SYSTEM, ASKED]
    sent_first = options.pop("sent_first", ["s1", "u1"])
    first_options = {
        name: options.pop(f"first_{name}") for name in ("tools", "options_sent") if f"first_{name}" in options
    }
    answer(tracked, ask_told(tracked, "one", first, session="s", sent=sent_first, **first_options))
    answer(tracked, ask_told(tracked, "two", now, session="s", sent=sent, **options))
    return view_session(tracked.tracker, "s")[0].turns[-1].change


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        (["a", "b"], [], "tools left out"),
        (["a", "b"], ["b"], "tools left out"),
        (["a"], ["a", "b"], "tools changed"),
        (["a", "b"], ["a", "c"], "tools changed"),
        (["a", "b"], ["b", "a"], "tools reordered"),
        (["a", "b"], ["a", "b, heavier"], "tool text changed"),
        (["a", "b"], ["b, heavier", "a"], "tool text changed"),
    ],
)
@pytest.mark.parametrize("place", ["in the system message", "behind it"])
def test_each_change_of_tools_has_its_name(first: list[str], second: list[str], cause: str, place: str) -> None:
    now = [OTHER, ASKED] if place == "in the system message" else [SYSTEM, ("u", [6] * 20)]
    change = find_change([*now, CALLED, RESULT], ["s1", "u1", "a1", "t1"], first_tools=first, tools=second)
    assert change is not None
    assert change.cause == cause


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (["s1", "u1", "a1", "t1", "s: mind the list"], "rendered anew"),
        (["s2", "u1", "a1", "t1"], "system message changed"),
        (["u1", "a1", "t1"], "system message changed"),
        (["s1", "u2", "a1", "t1"], "history edited"),
        (["s1"], "history truncated"),
    ],
)
def test_what_the_client_repeats_is_not_its_change(sent: list[str], cause: str) -> None:
    change = find_change([OTHER, ASKED, CALLED, RESULT], sent)
    assert change is not None
    assert (change.cause, change.role) == (cause, "system")


def test_a_reminder_left_out_later_is_an_edit_of_history() -> None:
    reminded = ["s1", "u1", "s: mind the list"]
    change = find_change([OTHER, ASKED, CALLED, RESULT], ["s1", "u1", "a1", "t1"], sent_first=reminded)
    assert change is not None
    assert change.cause == "history changed"


def test_other_options_of_the_template_are_named() -> None:
    change = find_change([OTHER, ASKED, CALLED, RESULT], ["s1", "u1", "a1", "t1"], options_sent="no thoughts")
    assert change is not None
    assert change.cause == "options changed"


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (["s1", "u1", "r1", "u2"], "rendered anew"),
        (["s1", "u1", "r1", "t1"], "reply not repeated"),
        (["s1", "u1", "a1", "u2"], "reply not repeated"),
    ],
)
def test_reasoning_that_the_template_hides_is_no_edit(sent: list[str], cause: str) -> None:
    change = find_change([SYSTEM, ASKED, CALLED, ("u", [8] * 20)], sent)
    assert change is not None
    assert (change.cause, change.role) == (cause, "assistant")


@pytest.mark.parametrize(("instructions", "cause"), [("s1", "rendered anew"), ("s2", "system message changed")])
@pytest.mark.parametrize("place", ["reply", "prompt"])
def test_a_reply_that_the_server_stored_is_its_own(instructions: str, cause: str, place: str) -> None:
    tracked = Tracked()
    first = ask_told(tracked, "resp_1_0-1f", [SYSTEM, ASKED], session="s", sent=["s1", "u1"])
    answer(tracked, first)
    head = [SYSTEM, ASKED] if place == "reply" else [OTHER, ASKED]
    answer(
        tracked, ask_told(tracked, "2", [*head, CALLED, RESULT], session="s", after="resp_1", sent=[instructions, "t1"])
    )
    change = view_session(tracked.tracker, "s")[0].turns[-1].change
    assert change is not None
    assert change.cause == ("rendered anew" if place == "reply" else cause)


def test_another_adapter_is_named() -> None:
    tracked = Tracked()
    first = ask_told(tracked, "one", [SYSTEM, ASKED], session="s")
    answer(tracked, first)
    second = ask_told(tracked, "two", [OTHER, ASKED, CALLED, RESULT], session="s", adapter="one")
    answer(tracked, second)
    change = view_session(tracked.tracker, "s")[0].turns[-1].change
    assert change is not None
    assert change.cause == "adapter changed"


@pytest.mark.parametrize("value", [None, "text", {"messages": 1, "tools": "", "options": ""}, {"messages": ""}])
def test_a_mark_of_another_form_is_not_read(value: Any) -> None:
    tracked = Tracked()
    request = tracked.ask("one", [1, END], marks={SENT_ARGUMENT: value})
    assert read_sent(request) == SentPrompt(None)
