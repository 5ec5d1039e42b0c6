from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.engine.jobs.turn_chains import Prompt, TurnChains
from agentcache.engine.request_state import LEAST_TURN_BYTES, Overlap, PromptEnd
from tool_runtime.learning.job_table import Parent

BLOCK = 16


def hash_blocks(text: str) -> list[bytes]:
    """A block a letter; its hash stands for all letters up to it, as vLLM's."""
    return [hash(text[:end]).to_bytes(8, "big", signed=True) * 4 for end in range(1, len(text) + 1)]


def describe(text: str, **told: Any) -> Prompt:
    return Prompt(hash_blocks(text), [ord(letter) for letter in text for _ in range(BLOCK)], **told)


def compare(turn: str, prompt: str) -> Overlap:
    chains = TurnChains(BLOCK)
    chains.note("turn", describe(turn))
    return chains.compare("turn", Prompt(hash_blocks(prompt)))


def test_a_prompt_that_goes_on_from_the_turn_shares_all_of_it() -> None:
    assert compare("abcd", "abcdef") == Overlap(4 * BLOCK, None)
    assert compare("abcd", "abcd") == Overlap(4 * BLOCK, None)


def test_an_edited_prompt_leaves_the_turn_where_it_differs() -> None:
    assert compare("abcd", "abxdef") == Overlap(2 * BLOCK, 2 * BLOCK, 2 * BLOCK)
    assert compare("abcd", "xbcd") == Overlap(0, 0, 4 * BLOCK)
    assert compare("abcd", "ab") == Overlap(2 * BLOCK, 2 * BLOCK, 2 * BLOCK)


def test_a_turn_without_a_full_block_tells_nothing() -> None:
    assert compare("", "ab") == Overlap(0, None)
    assert compare("", "") == Overlap(0, None)


def test_an_unknown_turn_and_none_at_all_share_nothing() -> None:
    chains = TurnChains(BLOCK)
    assert chains.compare("unknown", Prompt(hash_blocks("ab"))) == Overlap(0, None)
    assert chains.compare(None, Prompt(hash_blocks("ab"))) == Overlap(0, None)


def test_a_turn_is_compared_with_once() -> None:
    chains = TurnChains(BLOCK)
    chains.note("turn", describe("ab"))
    assert chains.compare("turn", Prompt(hash_blocks("ab"))).shared_tokens == 2 * BLOCK
    assert chains.compare("turn", Prompt(hash_blocks("ab"))).shared_tokens == 0


def test_the_oldest_turns_are_forgotten_and_a_reset_forgets_all() -> None:
    chains = TurnChains(BLOCK, 3 * LEAST_TURN_BYTES)
    for name in "abcde":
        chains.note(name, describe(name))
    assert [chains.compare(name, Prompt(hash_blocks(name))).shared_tokens for name in "abcd"] == [0, 0, BLOCK, BLOCK]
    chains.reset()
    assert chains.compare("e", Prompt(hash_blocks("e"))) == Overlap(0, None)


@given(st.text("ab", max_size=40), st.text("ab", max_size=40))
def test_it_agrees_with_the_common_beginning_of_the_texts(turn: str, prompt: str) -> None:
    pairs = zip(turn, prompt, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) * BLOCK
    whole = prompt.startswith(turn)
    assert compare(turn, prompt) == Overlap(common, None if whole else common, len(turn) * BLOCK - common)


@pytest.mark.parametrize(
    ("turns", "prompt", "found"),
    [
        (["abcd"], "abcdef", "abcd"),
        (["abcd"], "abxx", "abcd"),
        (["abcd"], "axxx", Parent.NONE),
        (["abcd", "abcxyz"], "abcxyy", "abcxyz"),
        # All of one is more than most of another.
        (["abcdef", "ab"], "abcx", "ab"),
        (["abcd", "abce"], "abcx", Parent.NONE),
        (["abcd", ""], "xy", Parent.UNKNOWN),
        (["abcd", ""], "abcdx", "abcd"),
        ([""], "ab", Parent.UNKNOWN),
        ([], "ab", Parent.NONE),
        (["abcd"], "", Parent.NONE),
    ],
)
def test_without_messages_most_of_a_turn_is_enough(turns: list[str], prompt: str, found: str | Parent) -> None:
    chains = TurnChains(BLOCK)
    for turn in turns:
        chains.note(turn, describe(turn))
    for _ in range(2):
        assert chains.find_continued(turns, describe(prompt)) == found, "to look does not change it"


def test_an_unknown_turn_may_be_the_one() -> None:
    chains = TurnChains(BLOCK)
    assert chains.find_continued(["unknown"], describe("ab")) is Parent.UNKNOWN
    assert chains.find_continued(["unknown"], describe("ab", roles="suau")) is Parent.UNKNOWN
    assert chains.find_continued(["unknown"], describe("ab", roles="su")) is Parent.NONE
    assert chains.find_continued(["unknown", "too"], describe("ab", roles="suau")) is Parent.NONE


@pytest.mark.parametrize(
    ("prompt", "roles", "found"),
    [
        # All messages, then a reply in other words; the longest of which that is so.
        ("abxx", "suau", "one"),
        ("abcxx", "suau", "two"),
        ("ab", "su", "one"),
        # What both begin with is more than what they do not share.
        ("aybcd", "su", Parent.NONE),
        ("aybcd", "suau", Parent.NONE),
        ("a", "s", Parent.NONE),
    ],
)
def test_with_messages_all_of_a_turn_s_are_wanted(prompt: str, roles: str, found: str | Parent) -> None:
    chains = TurnChains(BLOCK)
    for name, turn, messages in (("one", "abR", 2), ("two", "abcR", 3)):
        chains.note(name, describe(turn), end=PromptEnd(messages, ()))
    assert chains.find_continued(["one", "two"], describe(prompt, roles=roles)) == found


def test_a_reply_is_known_by_its_end_wherever_it_stands() -> None:
    chains = TurnChains(BLOCK)
    # The second has said before what it said last, and the third too little.
    for name, turn, reply in (("one", "ab", "R"), ("two", "acR", "R"), ("three", "ad", "")):
        chains.note(name, describe(turn), reply=[ord(letter) for letter in reply for _ in range(BLOCK)])
    turns = ["one", "two", "three"]
    assert chains.find_continued(turns, describe("xyRz", roles="suau")) == "one"
    assert chains.find_continued(turns[1:], describe("xyRz", roles="suau")) is Parent.NONE
    assert chains.find_continued(turns, describe("xyRz", roles="su")) is Parent.NONE


tokens = st.lists(st.sampled_from((0, 1, 100_000)), max_size=40)


@given(tokens, tokens, tokens, tokens)
def test_an_end_of_a_reply_is_known_where_it_stands_alone(
    asked: list[int], reply: list[int], before: list[int], behind: list[int]
) -> None:
    chains = TurnChains(BLOCK)
    chains.note("turn", Prompt((), asked), reply=reply)
    said = reply[-16:]
    has_said_before = any(asked[place : place + 16] == said for place in range(len(asked)))
    prompt = Prompt((), [*before, *reply, *behind], roles="suau")
    assert (chains.find_continued(["turn"], prompt) == "turn") == (len(said) == 16 and not has_said_before)


def test_an_answered_question_tells_before_all_else() -> None:
    chains = TurnChains(BLOCK)
    for name, turn, asked in (("one", "ab", "1"), ("two", "xy", "2"), ("old", "abc", "3")):
        chains.note(name, describe(turn, asked=asked), end=PromptEnd(len(turn), ()))
    waiting = ["one", "two"]
    assert chains.find_continued(waiting, describe("abq", roles="suau", answered="2"), owner="old") == "two"
    assert chains.find_continued(waiting, describe("abq", roles="suau", answered="3"), owner="old") == "old"
    assert chains.find_continued(waiting, describe("abq", roles="suau", answered="4"), owner="old") == "one"


def test_results_are_for_the_only_turn_that_waits() -> None:
    chains = TurnChains(BLOCK)
    for name in ("one", "two"):
        chains.note(name, describe(name, agent=name, asked=name), end=PromptEnd(3, ()))
    results = describe("xyz", roles="suat", answered="?")
    assert chains.find_continued(["one"], replace(results, agent="one")) == "one"
    assert chains.find_continued(["one", "two"], replace(results, agent="two")) == "two"
    assert chains.find_continued(["one", "two"], results) is Parent.NONE
    assert chains.find_continued(["one"], replace(results, agent="one", roles="suau")) is Parent.NONE


def test_no_agent_goes_on_from_another_s_turn() -> None:
    chains = TurnChains(BLOCK)
    chains.note("main", describe("ab", asked="1"), end=PromptEnd(2, ()))
    forked = describe("abcd", roles="suau", answered="1", agent="sub")
    assert chains.find_continued(["main"], forked, owner="main") is Parent.NONE
    assert chains.find_continued(["main"], replace(forked, agent=None), owner="main") == "main"
