"""The blocks of jobs' latest prompts, against the union of all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.learning.job_blocks import MAX_TURNS, PromptBlocks


def hash_chain(words: str) -> list[bytes]:
    """A block's hash stands for all blocks before it."""
    return [words[: end + 1].encode() for end in range(len(words))]


# A prompt of one of two agents of a job, or that agent's end.
CHANGES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("xy"), st.none() | st.text("ab", max_size=5)), max_size=40
)


@given(CHANGES)
def test_each_block_counts_once_however_many_share_it(changes: list[tuple[int, str, str | None]]) -> None:
    blocks, prompts = PromptBlocks(most=1000), dict[tuple[int, str], list[bytes]]()
    for job, turn, words in changes:
        if words is None:
            blocks.keep(job, [other for other in "xy" if other != turn])
            prompts.pop((job, turn), None)
        else:
            prompts[job, turn] = hash_chain(words)
            blocks.put(job, turn, prompts[job, turn])
        assert len(blocks) == len(set().union(*prompts.values()))
        blocks.check_integrity({job for job, _ in prompts})


@given(CHANGES, st.integers(0, 8))
def test_their_number_is_bounded(changes: list[tuple[int, str, str | None]], most: int) -> None:
    blocks = PromptBlocks(most)
    for job, turn, words in changes:
        blocks.put(job, turn, hash_chain(words or ""))
        assert len(blocks) <= max(most, 5), "or one prompt's"
        blocks.check_integrity(range(4))


def test_of_too_many_the_oldest_prompt_is_forgotten() -> None:
    blocks = PromptBlocks(most=4)
    for job, words in ((1, "aaa"), (2, "b"), (1, "aaaa"), (3, "c")):
        blocks.put(job, "turn", hash_chain(words))
    assert len(blocks) == 1, "the second and then the first job went"
    blocks.check_integrity([3])


def test_a_turn_that_goes_on_takes_the_place_of_the_one_before() -> None:
    blocks = PromptBlocks(most=1000)
    blocks.put(1, "one", hash_chain("ab"))
    blocks.rename(1, "one", "two")
    blocks.keep(1, ["two"])
    assert len(blocks) == 2
    blocks.put(1, "two", hash_chain("cde"))
    assert len(blocks) == 3
    blocks.keep(1)
    assert len(blocks) == 0
    blocks.check_integrity([])


def test_a_name_that_comes_again_leaves_nothing_behind() -> None:
    """Clients choose names: a turn may go on under that of another that is pending."""
    blocks = PromptBlocks(most=1000)
    blocks.put(1, "one", hash_chain("ab"))
    blocks.put(1, "two", hash_chain("cde"))
    blocks.rename(1, "two", "one")
    assert len(blocks) == 3
    blocks.rename(1, "one", "one")
    blocks.check_integrity([1])
    assert len(blocks) == 3


def test_of_a_job_the_latest_turns_are_known() -> None:
    blocks = PromptBlocks(most=10_000)
    for turn in range(1000):
        blocks.put(1, f"turn {turn}", [b"%d" % turn])
    assert len(blocks) == MAX_TURNS
    blocks.check_integrity([1])


def test_many_agents_with_one_context_cost_what_is_their_own() -> None:
    blocks, shared = PromptBlocks(most=1000), "s" * 300
    for agent in range(64):
        blocks.put(agent % 2, f"turn {agent}", hash_chain(shared + f"{agent:02}"))
    # Ten beginnings, 64 ends.
    assert len(blocks) == 300 + 7 + 64
    assert len(blocks._uses) == len(blocks)


def test_a_wrong_count_of_uses_is_found() -> None:
    blocks = PromptBlocks(most=9)
    blocks.put(1, "turn", hash_chain("ab"))
    blocks._uses[b"a"] += 1
    with pytest.raises(RuntimeError, match="other uses"):
        blocks.check_integrity([1])
