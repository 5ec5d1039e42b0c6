"""Why a turn's prompt was not in the cache: what the runtime says, and that it adds up."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from evicted_blocks import make_block
from hypothesis import given
from hypothesis import strategies as st
from told_requests import END, HEAD, answer, ask_told, message
from tracked_requests import BLOCK, Tracked
from vllm.v1.request import Request

from agentcache.engine.observe.misses import Eviction, explain_misses, find_missed
from agentcache.engine.request_state import Overlap
from agentcache.engine.rpc.job_views import count_runtime, view_session
from agentcache.engine.views import TurnView

SYSTEM = [1] * 4 * BLOCK
QUESTION = [2] * (3 * BLOCK - 2)
CHAT = [("s", SYSTEM), ("u", [5] * 20)]
DATED = ("s", [2, *SYSTEM[1:]])


def evict(tracked: Tracked, request: Request, blocks: Sequence[int], by: str) -> None:
    """Another request takes the room of these of a finished one's blocks."""
    tracked.misses.evicted([make_block(index, request.block_hashes[index]) for index in blocks], by)


def last_turn(tracked: Tracked, session: str) -> TurnView:
    return view_session(tracked.tracker, session)[0].turns[-1]


def test_a_first_prompt_was_never_seen() -> None:
    tracked = Tracked()
    request = ask_told(tracked, "one", [("s", SYSTEM), ("u", QUESTION)], session="s")
    answer(tracked, request)
    turn = last_turn(tracked, "s")
    assert (turn.misses, turn.change, turn.lost_to) == ({"new": request.num_prompt_tokens}, None, ())


def test_evicted_blocks_tell_by_whom_and_when() -> None:
    tracked = Tracked()
    chat = [("s", SYSTEM), ("u", QUESTION)]
    first = ask_told(tracked, "one", chat, session="s")
    answer(tracked, first)
    thief = ask_told(tracked, "thief", [("s", [8] * 9)], session="other")
    evict(tracked, first, [2, 3, 4], by="thief")
    tracked.clock.now_s += 5
    again = ask_told(tracked, "two", [*chat, ("a", [9]), ("u", [7] * BLOCK)], session="s")
    answer(tracked, again, cached_tokens=2 * BLOCK)
    turn = last_turn(tracked, "s")
    # The blocks behind those three are in the cache, but out of reach.
    shared = turn.change.at_token // BLOCK if turn.change is not None else 0
    assert turn.misses["evicted"] == 3 * BLOCK
    assert turn.misses["behind a gap"] == (shared - 5) * BLOCK
    (loss,) = turn.lost_to
    assert (loss.tokens, loss.ago_s, loss.taker) == (3 * BLOCK, 5.0, "other")
    (hidden,) = view_session(tracked.tracker, "s", [None])
    assert [each.taker for each in hidden.turns[-1].lost_to] == [None], "it may be another tenant's"
    answer(tracked, thief)


def test_what_fill_requests_computed_counts_as_missed() -> None:
    tracked = Tracked()
    chat = [("s", SYSTEM), ("u", QUESTION)]
    first = ask_told(tracked, "one", chat, session="s")
    answer(tracked, first)
    evict(tracked, first, [1, 2], by="")
    again = ask_told(tracked, "two", [*chat, ("a", [9])], session="s")
    # One block at the beginning and four behind the gap.
    tracked.admit(again, 5 * BLOCK, filled={1, 2})
    tracked.reply(again)
    misses = last_turn(tracked, "s").misses
    assert misses["evicted"] == 2 * BLOCK
    assert "behind a gap" not in misses
    assert sum(misses.values()) == again.num_prompt_tokens - 5 * BLOCK


def test_what_may_not_be_read_was_not_evicted() -> None:
    tracked = Tracked()
    chat = [("s", SYSTEM), ("u", QUESTION)]
    first = ask_told(tracked, "one", chat, session="s")
    answer(tracked, first)
    evict(tracked, first, [2], by="")
    answer(tracked, ask_told(tracked, "two", [*chat, ("a", [9])], session="s", prompt_logprobs=0))
    turn = last_turn(tracked, "s")
    assert set(turn.misses) == {"not read", "changed"}
    assert turn.misses["not read"] == turn.diverged_at
    assert turn.lost_to == ()


def test_what_nobody_evicted_is_not_told_to_be_evicted() -> None:
    tracked = Tracked()
    chat = [("s", SYSTEM), ("u", QUESTION)]
    first = ask_told(tracked, "one", chat, session="s")
    answer(tracked, first)
    # A drafter, say, does without the last of the blocks that are there.
    again = ask_told(tracked, "two", [*chat, ("a", [9]), ("u", [7] * BLOCK)], session="s")
    assert again.prefill_stats is not None
    shared = sum(one == other for one, other in zip(first.block_hashes, again.block_hashes, strict=False)) * BLOCK
    answer(tracked, again, cached_tokens=shared - BLOCK)
    assert last_turn(tracked, "s").misses["not read"] == BLOCK


def test_what_may_have_been_forgotten_counts_as_evicted() -> None:
    # Of four blocks it is known that they were evicted.
    tracked = Tracked(num_blocks=1)
    chat = [("s", SYSTEM), ("u", QUESTION)]
    answer(tracked, ask_told(tracked, "old", chat, session="old"))
    first = ask_told(tracked, "one", chat, session="s")
    answer(tracked, first)
    tracked.clock.now_s += 1
    evict(tracked, first, [0], by="")
    evict(tracked, first, [1, 2, 3, 4], by="")
    answer(tracked, ask_told(tracked, "two", [*chat, ("a", [9])], session="s"))
    misses = last_turn(tracked, "s").misses
    assert "not read" not in misses
    assert misses["evicted"] >= 2 * BLOCK


@pytest.mark.parametrize(
    ("before", "now", "tools", "cause", "role"),
    [
        (CHAT, [DATED, CHAT[1]], "ab", "system message changed", "system"),
        (CHAT, [DATED, CHAT[1]], "ba", "tools reordered", "system"),
        (CHAT, [DATED, CHAT[1]], "abc", "tools changed", "system"),
        (CHAT, [CHAT[0], ("u", [5] * 9 + [6] * 11)], "ab", "history edited", "user"),
        (CHAT, CHAT, "ab", "reply not repeated", "assistant"),
        # Templates may merge the results of tools, and add a system message of their own.
        ([("u", SYSTEM)], [("u", DATED[1])], "ab", "history edited", "user"),
    ],
)
def test_a_change_tells_where_and_what(
    before: list[tuple[str, list[int]]], now: list[tuple[str, list[int]]], tools: str, cause: str, role: str
) -> None:
    tracked = Tracked()
    answer(tracked, ask_told(tracked, "one", before, tools="ab", session="s"))
    answer(tracked, ask_told(tracked, "two", [*now, ("a", [9]), ("t", [7]), ("t", [8])], tools=tools, session="s"))
    turn = last_turn(tracked, "s")
    assert turn.change is not None
    assert (turn.change.cause, turn.change.role, turn.change.at_token) == (cause, role, turn.diverged_at)
    assert turn.misses["changed"] > 0
    assert count_runtime(tracked.tracker).changed_prompts == {cause: 1}


def test_a_prompt_that_goes_on_has_not_changed() -> None:
    tracked = Tracked()
    first = ask_told(tracked, "one", [("s", SYSTEM), ("u", QUESTION)], session="s")
    answer(tracked, first)
    prompt = [*first.all_token_ids, *message(7, 8), *HEAD]
    request = tracked.ask("two", prompt, session="s", end_of_turn=END)
    tracked.admit(request, cached_tokens=(first.num_tokens - 1) // BLOCK * BLOCK)
    tracked.reply(request)
    turn = last_turn(tracked, "s")
    assert (turn.change, list(turn.misses)) == (None, ["new"])


def test_an_emptied_cache_has_no_culprit() -> None:
    tracked = Tracked()
    chat = [("s", SYSTEM), ("u", QUESTION)]
    first = ask_told(tracked, "one", chat, session="s")
    answer(tracked, first)
    evict(tracked, first, [2], by="")
    tracked.tracker.reset()
    tracked.misses.reset()
    answer(tracked, ask_told(tracked, "two", [*chat, ("a", [9])], session="s"))
    assert last_turn(tracked, "s").lost_to == ()


blocks = st.integers(0, 30)


@given(blocks, blocks, st.sets(blocks), st.sets(blocks), st.tuples(blocks, blocks, st.integers(0, BLOCK - 1)))
def test_reasons_add_up_to_what_was_missed(
    full: int, cached: int, filled: set[int], lost: set[int], others: tuple[int, int, int]
) -> None:
    shared, abandoned, rest = others
    missed = find_missed(full, min(cached, full), filled)
    evicted = {index: Eviction(0, 0.0, "") for index in missed if index in lost}
    tokens = len(missed) * BLOCK + rest
    overlap = Overlap(shared * BLOCK, None, abandoned * BLOCK)
    for reads_cache, all_remembered in itertools.product((True, False), repeat=2):
        reasons = explain_misses(
            missed, tokens, evicted, overlap, BLOCK, reads_cache=reads_cache, all_remembered=all_remembered
        )
        assert sum(reasons.values()) == tokens
        assert all(value > 0 for value in reasons.values())
        if not reads_cache:
            assert not reasons.keys() & {"evicted", "behind a gap"}
        elif all_remembered:
            assert reasons.get("evicted", 0) == len(evicted) * BLOCK
        else:
            assert reasons.get("evicted", 0) >= len(evicted) * BLOCK
    assert len(set(missed)) == len(missed)
