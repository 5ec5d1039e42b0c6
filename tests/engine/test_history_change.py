"""What became of a turn's messages, by digests alone; a letter and a number stand for each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.engine.history_change import MESSAGE, cut, find_history_change, has_same_start, repeats_last_messages
from agentcache.engine.marks import MAX_MESSAGES, SentPrompt

TURN = "s1 u1 a1 t1 a2 t2 a3 t3"


def digest(messages: str) -> list[str]:
    return [f"{message[0]}{message[1:]:0>8}" for message in messages.split()]


def send(messages: str, tools: str = "", *, continues: bool = False) -> SentPrompt:
    return SentPrompt(None, continues, "".join(digest(messages)), tools)


@pytest.mark.parametrize(
    ("prompt", "change"),
    [
        # Claude Code and Codex send a summary as a person's message, OpenCode as a reply, Gemini CLI with one behind.
        ("s1 u9", "history summarised"),
        ("s1 u1 u9", "history summarised"),
        ("s1 u8 a9 u9", "history summarised"),
        ("s1 u9 a8 u2 a4 t4", "history summarised"),
        ("s1 a3 t3 a4 t4", "history truncated"),
        ("s1 u1 a3 t3 a4 t4", "history truncated"),
        # A note stands in place of what was cut; of the last turn the reply alone is left.
        ("s1 u9 a3 t3 a4 t4", "history truncated"),
        ("s1 a4 t4", "history truncated"),
        ("s1 u1 a1 t9 a2 t2 a3 t3 a4 t4", "history edited"),
        ("s1 u1 a1 t9 a2 t8 a3 t7 a4 t4", "history edited"),
        ("s1 u1 s9 a1 t1 a2 t2 a3 t3 a4 t4", "history changed"),
        ("s1", "history truncated"),
        ("s1 a1 t1 a2 t2 a3 t3 a4 t4", "history truncated"),
    ],
)
def test_each_change_of_a_history_has_its_name(prompt: str, change: str) -> None:
    assert find_history_change(digest(TURN), digest(prompt)) == change


@pytest.mark.parametrize(
    ("turn", "prompt", "is_known"),
    [
        (TURN, "s1 t3 a9 t4", True),
        (TURN, "s1 a3 t3 r8 a9 u4", True),
        (TURN, "s1 t3 a8 t9 a9 t4", False),
        (TURN, "s1 t3", False),
        # A question may be asked again: it tells with the message before it.
        ("s1 u1", "s1 u1 a1 u2", True),
        ("s2 u1", "s1 u1 a1 u2", False),
        ("u1", "u1 a1 u2", False),
    ],
)
def test_a_turn_is_known_by_what_its_reply_stands_behind(turn: str, prompt: str, is_known: bool) -> None:
    assert repeats_last_messages(send(turn), send(prompt)) == is_known


def test_of_histories_beyond_the_bound_nothing_is_told() -> None:
    long = " ".join(["u1"] * (MAX_MESSAGES - 1) + ["t1"])
    assert not repeats_last_messages(send(long), send(f"{long} a1 t2"))
    assert not repeats_last_messages(None, send(TURN))


@pytest.mark.parametrize(
    ("now", "is_same"),
    [
        (send("s1 u9", "tools"), True),
        (send("s2 u9", "tools"), False),
        (send("s1 u9", "others"), False),
        (send("s1 u9", "tools", continues=True), False),
        (SentPrompt(None), False),
    ],
)
def test_one_agent_has_one_system_message_and_tools(now: SentPrompt, is_same: bool) -> None:
    assert has_same_start(send(TURN, "tools"), now) == is_same
    assert not has_same_start(send("u1 a1", "tools"), send("u1 a1", "tools")), "without a system message nothing tells"


messages = st.lists(st.sampled_from(["s1", "u1", "u2", "a1", "r1", "t1", "t2"]), min_size=1, max_size=9).map(" ".join)


@given(messages, messages)
def test_any_two_histories_have_an_answer(turn: str, prompt: str) -> None:
    assert cut(send(turn).messages or "", MESSAGE) == digest(turn)
    assert find_history_change(digest(turn), digest(prompt)).startswith("history ")
    repeats_last_messages(send(turn), send(prompt))
