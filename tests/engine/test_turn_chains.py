from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.engine.jobs.turn_chains import Overlap, TurnChains
from tool_runtime.learning.job_table import Parent

BLOCK = 16


def hash_blocks(text: str) -> list[bytes]:
    """A block a letter; its hash stands for all letters up to it, as vLLM's."""
    return [hash(text[:end]).to_bytes(8, "big", signed=True) * 4 for end in range(1, len(text) + 1)]


def compare(turn: str, prompt: str) -> Overlap:
    chains = TurnChains(BLOCK)
    chains.note("turn", hash_blocks(turn))
    return chains.compare("turn", hash_blocks(prompt))


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
    assert chains.compare("unknown", hash_blocks("ab")) == Overlap(0, None)
    assert chains.compare(None, hash_blocks("ab")) == Overlap(0, None)


def test_a_turn_is_compared_with_once() -> None:
    chains = TurnChains(BLOCK)
    chains.note("turn", hash_blocks("ab"))
    assert chains.compare("turn", hash_blocks("ab")).shared_tokens == 2 * BLOCK
    assert chains.compare("turn", hash_blocks("ab")).shared_tokens == 0


def test_the_oldest_turns_are_forgotten_and_a_reset_forgets_all() -> None:
    chains = TurnChains(BLOCK, max_chains=3)
    for name in "abcde":
        chains.note(name, hash_blocks(name))
    assert [chains.compare(name, hash_blocks(name)).shared_tokens for name in "abcd"] == [0, 0, BLOCK, BLOCK]
    chains.clear()
    assert chains.compare("e", hash_blocks("e")) == Overlap(0, None)


@given(st.text("ab", max_size=40), st.text("ab", max_size=40))
def test_it_agrees_with_the_common_beginning_of_the_texts(turn: str, prompt: str) -> None:
    pairs = zip(turn, prompt, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) * BLOCK
    whole = prompt.startswith(turn)
    assert compare(turn, prompt) == Overlap(common, None if whole else common, len(turn) * BLOCK - common)


@pytest.mark.parametrize(
    ("turns", "prompt", "relative"),
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
def test_the_turn_that_a_prompt_goes_on_from(turns: list[str], prompt: str, relative: str | Parent) -> None:
    chains = TurnChains(BLOCK)
    for turn in turns:
        chains.note(turn, hash_blocks(turn))
    for _ in range(2):
        assert chains.find_relative(turns, hash_blocks(prompt)) == relative, "to look does not change it"


@pytest.mark.parametrize(
    ("prompt", "min_blocks", "extended"),
    [
        ("abcdef", 1, "abcd"),
        ("abcd", 4, "abcd"),
        ("abcdef", 5, None),
        # Not all of the longer.
        ("abcx", 1, "ab"),
        ("abcx", 3, None),
        ("axcd", 1, None),
        ("", 1, None),
    ],
)
def test_the_longest_turn_of_which_a_prompt_has_all(prompt: str, min_blocks: int, extended: str | None) -> None:
    chains = TurnChains(BLOCK)
    turns = ["", "ab", "abcd", "abxxxx"]
    for turn in turns:
        chains.note(turn, hash_blocks(turn))
    assert chains.find_extended([*turns, "unknown"], hash_blocks(prompt), min_blocks) == extended
    assert chains.find_extended([], hash_blocks(prompt), min_blocks) is None


def test_an_unknown_turn_may_be_the_one() -> None:
    assert TurnChains(BLOCK).find_relative(["unknown"], hash_blocks("ab")) is Parent.UNKNOWN
