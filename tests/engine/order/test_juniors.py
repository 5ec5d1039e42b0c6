"""Which jobs are juniors, and that they leave room to the others at each of their turns."""

from __future__ import annotations

import pytest
from tracked_requests import ASKED, BLOCK, LOSS_S, Tracked
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock
from vllm.v1.request import Request
from waiting_requests import BLOCKS_ASKED, RESERVED, SEARCH, make_waiting

from agentcache.engine.order.admission import FAR_TURNS, Juniors
from agentcache.policy.runtime_policy import Order

# Three of four jobs are juniors.
ORDER = Order(patience_s=RESERVED.patience_s, reserve=RESERVED.reserve, juniors=0.75)


@pytest.mark.parametrize(
    ("bound", "included", "excluded"),
    [(3, [0, 1, 2], [3, 4]), (1, [0], [1, 2]), (0, [0], [1, 2]), (40, [0, FAR_TURNS - 1], [FAR_TURNS, 39])],
)
def test_new_jobs_and_those_behind_most_are_juniors(bound: int, included: list[int], excluded: list[int]) -> None:
    juniors = Juniors(0.5, lambda share: bound if share == 0.5 else -1)
    assert [turn for turn in (*included, *excluded) if juniors.include(turn)] == included


def test_turns_are_counted_once_a_step() -> None:
    bounds = iter([2, 4])
    juniors = Juniors(0.5, lambda _: next(bounds))
    assert [juniors.include(3), juniors.include(1)] == [False, True]
    juniors.step()
    assert [juniors.include(3), juniors.include(4)] == [True, False]


def come_again(tracked: Tracked, session: str, turns: int) -> Request:
    """Do so many turns of a job, then let its next request come."""
    history = list(ASKED)
    for number in range(turns):
        history = tracked.turn(f"{session} {number}", history, session=session, calls=(SEARCH,))
    return tracked.ask(f"{session} again", [*history, 5], session=session)


@pytest.mark.parametrize(("turns", "waits"), [(1, True), (2, True), (3, True), (4, False)])
def test_a_junior_leaves_room_to_those_that_have_come_further(turns: int, waits: bool) -> None:
    tracked = make_waiting(pinned=6, order=ORDER)
    for session, done in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        if done != turns:
            come_again(tracked, session, done)
    request = come_again(tracked, "e", turns)
    tracked.tracker.step()
    available = -(-request.num_tokens // BLOCK) + 6
    assert tracked.tracker.find_wait(request, available=available) == ("new job" if waits else None)
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(request, available=available + 4), "there is room for both"


def test_a_junior_waits_although_it_is_pinned_a_senior_does_not() -> None:
    tracked = make_waiting(pinned=6, order=ORDER)
    tracked.pins.await_return = lambda _: True
    senior, junior = come_again(tracked, "senior", 4), come_again(tracked, "junior", 1)
    assert tracked.tracker.find_wait(junior, available=6)
    assert not tracked.tracker.find_wait(senior, available=6)


def test_a_junior_waits_at_each_turn_for_its_patience() -> None:
    tracked = make_waiting(pinned=6, order=ORDER)
    come_again(tracked, "senior", 4)
    for turns in (1, 2):
        request = come_again(tracked, f"junior {turns}", turns)
        assert tracked.tracker.find_wait(request, available=6)
        tracked.clock.now_s += 8
        tracked.tracker.step()
        assert not tracked.tracker.find_wait(request, available=6)


def test_jobs_that_wait_for_a_human_are_not_compared_with() -> None:
    tracked = make_waiting(pinned=6, order=ORDER)
    for number in range(4):
        tracked.reply(come_again(tracked, f"old {number}", 5))
    request = come_again(tracked, "now", 2)
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(request, available=-(-request.num_tokens // BLOCK) + 6)
    assert tracked.tracker.find_wait(tracked.ask("new", ASKED), available=BLOCKS_ASKED + 6)


@pytest.mark.parametrize(("kept", "added", "cost_blocks"), [(4, 0, 0), (4, 1, 4), (2, 0, 2), (0, 0, 4)])
def test_a_junior_waits_for_what_its_job_will_still_take(kept: int, added: int, cost_blocks: int) -> None:
    tracked = make_waiting(pinned=6, order=ORDER, protect_waiting=True)
    tracked.running = 2
    for _ in range(1000):
        tracked.runtime.context_growth.note_turn(1000, 1000 + 200 * added)
    tracked.hits = [KVCacheBlock(number) for number in range(kept)]
    for number, block in enumerate(tracked.hits):
        block.ref_cnt = 1
        block.set_block_hash(BlockHashWithGroupId(b"any"), num_tokens=(number + 1) * BLOCK)
    # Nothing is lacking but for the others' room, of which its job takes what it has not yet.
    request, come_s = tracked.ask("a", ASKED), tracked.clock.now_s
    waits = {}
    for waited_s in (0.0, 0.95 * cost_blocks * 2 * LOSS_S, 1.05 * cost_blocks * 2 * LOSS_S):
        tracked.tracker.step()
        tracked.clock.now_s = come_s + waited_s
        waits[waited_s] = tracked.tracker.find_wait(request, available=BLOCKS_ASKED - kept + 6)
    assert list(waits.values()) == (["new job", "new job", None] if cost_blocks else [None])


def test_tokens_of_each_turn_are_learned_from() -> None:
    tracked = make_waiting(pinned=6, order=ORDER)
    come_again(tracked, "a", 20)
    # Prompts of 16, 17 … 36 tokens and more: they grow by a few percent a turn.
    assert 0 < tracked.runtime.context_growth.ratio < 1
