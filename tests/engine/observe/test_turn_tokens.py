"""The tokens around the place where a prompt leaves its job's last turn: kept only where text may be shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from lone_scheduler import make_config, make_scheduler
from told_requests import END, answer, ask_told
from tracked_requests import BLOCK, Tracked
from vllm.v1.request import Request

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.observe.prompt_change import PromptChanges, cut_change
from agentcache.engine.request_state import LEAST_TURN_BYTES, Overlap
from agentcache.engine.rpc.core_calls import release
from agentcache.engine.rpc.job_views import view_session
from agentcache.engine.views import ChangeText, ChangeView

SYSTEM = list(range(100, 100 + 8 * BLOCK))
DATE = 5 * BLOCK + 2
CHAT = [("s", SYSTEM), ("u", [5] * 20)]
TOMORROW = [*SYSTEM[:DATE], 99, *SYSTEM[DATE + 1 :]]


def change_date(tracked: Tracked) -> ChangeView:
    answer(tracked, ask_told(tracked, "one", CHAT, session="s"))
    answer(tracked, ask_told(tracked, "two", [("s", TOMORROW), *CHAT[1:], ("a", [9]), ("u", [8])], session="s"))
    change = view_session(tracked.tracker, "s")[0].turns[-1].change
    assert change is not None
    return change


def test_the_tokens_around_a_change_are_told() -> None:
    change = change_date(Tracked(shows_text=True))
    assert change.at_token == DATE // BLOCK * BLOCK
    behind = [*SYSTEM[DATE + 1 :], END, *[5] * 20]
    assert change.text == ChangeText(
        at_token=DATE,
        before=tuple(SYSTEM[DATE - 16 : DATE]),
        was=(SYSTEM[DATE], *behind[:15]),
        now=(99, *behind[:15]),
    )


def test_without_the_knob_nothing_is_told() -> None:
    assert change_date(Tracked()).text is None


def test_a_reply_that_is_not_repeated_is_told() -> None:
    tracked = Tracked(shows_text=True)
    request = ask_told(tracked, "one", CHAT, session="s")
    answer(tracked, request)
    reply = list(request.all_token_ids)[request.num_prompt_tokens :]
    answer(tracked, ask_told(tracked, "two", [*CHAT, ("a", [9])], session="s"))
    change = view_session(tracked.tracker, "s")[0].turns[-1].change
    assert change is not None
    assert change.cause == "reply not repeated"
    assert isinstance(change.text, ChangeText)
    assert change.text.was[-1] == reply[0]
    assert 9 in change.text.now


def ask_finished(name: str, tokens: Sequence[int]) -> Request:
    request = Tracked().ask(name, tokens)
    request.append_output_token_ids([7])
    return request


def find_text(changes: PromptChanges, turn: str) -> ChangeText | None:
    """What is kept of the turn, as a prompt tells that leaves it at its first token."""
    return changes.explain(Tracked().ask("next", [0] * BLOCK), Overlap(0, 0, BLOCK), turn).text


def test_tokens_are_kept_while_a_job_is_away() -> None:
    tracked = Tracked(shows_text=True)
    answer(tracked, ask_told(tracked, "one", CHAT, session="s"))
    answer(tracked, ask_told(tracked, "other", [("s", TOMORROW)], session="other"))
    answer(tracked, ask_told(tracked, "third", CHAT, session="third"))
    changes = tracked.tracker.changes
    release(tracked.tracker, "s")
    assert find_text(changes, "one") is None, "its job is over"
    assert find_text(changes, "other") is not None
    answer(tracked, ask_told(tracked, "next", [("s", TOMORROW), ("u", [5])], session="other"))
    assert find_text(changes, "other") is None, "its job was back"
    tracked.tracker.reset()
    assert find_text(changes, "third") is None


def test_the_oldest_turns_make_room() -> None:
    changes = PromptChanges(BLOCK, shows_text=True, max_bytes=2 * LEAST_TURN_BYTES)
    for turn in "abc":
        changes.note(ask_finished(turn, [ord(turn)] * 4), turn, None)
    assert [find_text(changes, turn) is not None for turn in "abc"] == [False, True, True]
    changes.note(ask_finished("too long", [1] * LEAST_TURN_BYTES), "too long", None)
    assert find_text(changes, "too long") is None


LAST = [*range(40)]


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        ([*range(18), 99, 98], 18),
        # The prompt ends where the turn went on.
        ([*range(18)], 18),
        # The tokens of the block are the same; what they stand for is not.
        ([*range(40)], None),
    ],
)
def test_the_first_token_that_differs_is_found(prompt: list[int], place: int | None) -> None:
    found = cut_change(LAST, prompt, at_token=16, block_size=8)
    assert (found and found.at_token) == place
    if found:
        assert (found.before, found.was) == (tuple(range(2, 18)), tuple(range(18, 34)))
        assert found.now == tuple(prompt[18:])
    assert cut_change([], prompt, at_token=16, block_size=8) is None


@pytest.mark.parametrize("shows", [False, True])
def test_the_knob_says_whether_tokens_are_kept(tiny_model_path: str, shows: bool) -> None:
    knobs = {"policy": "agentcache", "runtime": {"tool_parser": None, "show_text": shows}}
    scheduler = make_scheduler(make_config(tiny_model_path, SCHEDULER_CLASS, **knobs), 40)
    assert scheduler.tracker.changes.shows_text == shows
