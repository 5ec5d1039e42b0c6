"""What a client has left goes first from the CPU cache as well, is copied no more, and comes back when it is used."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from chats import SYSTEM, Messages, begin, do, find_hashes, finish
from steered_scheduler import tokens_of
from tiered_jobs import push_out
from tiered_scheduler import TieredScheduler, make_tiered


class Left(NamedTuple):
    """A job cut its history: the hashes that it left, those of the job beside it, and the history."""

    left: list[bytes]
    others: list[bytes]
    history: Messages


def work(lone: TieredScheduler, session: str, turns: int) -> Messages:
    messages: Messages = [SYSTEM, ("u", tokens_of(len(session), 20))]
    for turn in range(turns):
        results = [("t", tokens_of(100 + turn, 30))] if turn else []
        messages = do(lone, f"{session} {turn}", [*messages, *results], session=session)
    return messages


def list_copies(lone: TieredScheduler) -> list[bytes]:
    """The hashes in the CPU cache, next victim first."""
    free = lone.host_pool.free_block_queue.get_all_free_blocks()
    return [block.block_hash[:-4] for block in free if block.block_hash is not None]


def leave(lone: TieredScheduler, *, on_host: bool) -> Left:
    other, history = work(lone, "other", 3), work(lone, "s", 4)
    if on_host:
        push_out(lone, 1, 2, 3, 4)
    left = [each for each in find_hashes(lone, history)[3:] if each not in find_hashes(lone, other)]
    cut = [SYSTEM, *history[-4:], ("t", tokens_of(109, 30))]
    begin(lone, "after", cut)
    lone.scheduler.frees.step()
    return Left(left, list(find_hashes(lone, other)), history)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_copies_of_what_was_left_go_first(tiny_model_path: str, in_flight: int) -> None:
    lone = make_tiered(tiny_model_path, in_flight=in_flight)
    found = leave(lone, on_host=True)
    copies = list_copies(lone)
    left = [each for each in copies if each in found.left]
    assert len(left) > 5
    assert set(copies[: len(left)]) == set(left)
    lone.run_until_idle()
    # Nor does anything make them dear again while others come and go.
    push_out(lone, 5, 6)
    copies = list_copies(lone)
    assert set(copies[: len(left)]) == set(left)


def test_what_was_left_is_not_copied_any_more(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path, blocks=80)
    found = leave(lone, on_host=False)
    lone.run_until_idle()
    push_out(lone, 1, 2, 3, 4)
    copies = list_copies(lone)
    assert set(copies).isdisjoint(found.left)
    assert set(copies) & set(found.others), "what waits is copied"


def test_what_is_used_again_is_worth_as_much_as_before(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    found = leave(lone, on_host=True)
    lone.run_until_idle()
    do(lone, "again", [*found.history, ("t", tokens_of(120, 30))], session="again")
    push_out(lone, 5, 6, 7, 8)
    copies = list_copies(lone)
    left = [each for each in found.left if each in copies]
    assert len(left) > 5
    assert set(copies[: len(left)]) != set(left)
    finish(lone)


def test_what_an_agent_that_is_over_had_alone_goes_first(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    main = work(lone, "s", 1)
    kind = ("s", tokens_of(5, 60))
    chats = []
    for name in ("a", "b"):
        begun = do(lone, f"{name} 0", [kind, ("u", tokens_of(ord(name), 20))], agent=name)
        chats.append(do(lone, f"{name} 1", [*begun, ("t", tokens_of(110, 60))], agent=name, is_answer=True))
    push_out(lone, 1, 2, 3, 4)
    do(lone, "main", [*main, ("t", tokens_of(109, 30))])
    lone.scheduler.frees.step()
    one, two = (find_hashes(lone, chat) for chat in chats)
    copies = list_copies(lone)
    own = [block for block in copies if block in set(two) - set(one)]
    assert len(own) > 2
    shared = [copies.index(block) for block in copies if block in set(one) & set(two)]
    assert max(map(copies.index, own)) < min(shared), "what its kind begins with stays"
