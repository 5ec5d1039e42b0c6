"""Where jobs want more than the caches hold, turns that lost their context wait, and the others keep theirs."""

from __future__ import annotations

import random
from typing import Any

from lone_scheduler import LoneScheduler
from test_admission import SEARCH, make_waiting
from test_steered_scheduler import make_lone, run_until_idle, tokens_of
from tracked_requests import ASKED, BLOCK, Tracked
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock
from vllm.v1.request import Request, RequestStatus

WAIT_S = 20.0


def make_controlled() -> Tracked:
    tracked = make_waiting(pinned=0, protect_waiting=True)
    tracked.longest_wait_s = WAIT_S
    tracked.tracker.step()
    return tracked


def come_back(tracked: Tracked, name: str, kept_blocks: int = 0) -> Request:
    """A job's second turn, of whose prompt so many blocks are cached still."""
    history = tracked.turn(f"{name} first", ASKED, session=name, calls=(SEARCH,))
    tracked.hits = [KVCacheBlock(number) for number in range(kept_blocks)]
    for number, block in enumerate(tracked.hits):
        block.set_block_hash(BlockHashWithGroupId(b"any"), num_tokens=(number + 1) * BLOCK)
    request = tracked.ask(f"{name} second", [*history, 5], session=name)
    tracked.hits = []
    tracked.tracker.step()
    return request


def test_a_turn_without_its_context_waits_and_lets_others_pass() -> None:
    tracked = make_controlled()
    lost, kept = come_back(tracked, "lost"), come_back(tracked, "kept", kept_blocks=4)
    assert tracked.tracker.should_defer(lost, available=100)
    assert not tracked.tracker.should_defer(kept, available=100)
    assert not tracked.tracker.should_defer(tracked.ask("new", ASKED, session="new"), available=100)
    assert tracked.tracker.should_defer(lost, available=100)
    assert tracked.tracker.load_control.held_turns == 1, "a turn counts once"


def test_what_is_left_of_its_context_is_not_kept_for_it() -> None:
    tracked = make_controlled()
    guarded: list[str] = []
    tracked.pins.guard = lambda request_id, *_: guarded.append(request_id)
    lost, kept = come_back(tracked, "lost", kept_blocks=1), come_back(tracked, "kept", kept_blocks=4)
    assert tracked.tracker.should_defer(lost, available=100)
    assert guarded == [kept.request_id]
    tracked.longest_wait_s = 0.0
    tracked.tracker.step()
    fits = come_back(tracked, "fits", kept_blocks=1)
    assert guarded == [kept.request_id, fits.request_id], "it goes on at once"


def test_it_waits_until_its_round_or_until_all_contexts_fit() -> None:
    tracked = make_controlled()
    request = come_back(tracked, "a")
    tracked.clock.now_s += WAIT_S - 0.1
    assert tracked.tracker.should_defer(request, available=100), "whatever its patience"
    tracked.longest_wait_s = 0.0
    tracked.tracker.step()
    assert not tracked.tracker.should_defer(request, available=100)
    tracked.longest_wait_s = WAIT_S
    tracked.tracker.step()
    assert tracked.tracker.should_defer(request, available=100)
    tracked.clock.now_s += 0.1
    assert not tracked.tracker.should_defer(request, available=100)


def test_a_preempted_request_goes_on() -> None:
    tracked = make_controlled()
    request = come_back(tracked, "a")
    request.status = RequestStatus.PREEMPTED
    assert not tracked.tracker.should_defer(request, available=100)


def test_what_the_host_s_memory_has_is_not_lost() -> None:
    tracked = make_controlled()
    tracked.tracker.load_control.count_elsewhere = lambda _: 4
    assert not tracked.tracker.should_defer(come_back(tracked, "a"), available=100)


def run_lanes(lone: LoneScheduler, lanes: int, turns: int, seed: int = 0) -> int:
    """Agents that come back two steps after each reply, in any order. The tokens that they hit."""
    rng = random.Random(seed)
    prompts = {number: tokens_of(number, 96) for number in range(lanes)}
    left = dict.fromkeys(prompts, turns)
    due = dict.fromkeys(prompts, 0)
    hits = steps = 0
    while left:
        for number in sorted(due, key=lambda _: rng.random()):
            if due[number] <= steps:
                del due[number]
                calls = (SEARCH,) if left[number] > 1 else ()
                lone.add(f"{number}.{left[number]}", prompts[number], 4, calls=calls, session_id=str(number))
        lone.scheduler.clock.now_s += 1.0
        step = lone.step()
        steps += 1
        assert steps < 5000, "nothing goes on"
        lone.scheduler.check_integrity()
        hits += sum(step.hit_tokens.values())
        for name, tokens in step.finished.items():
            number = int(name.split(".")[0])
            left[number] -= 1
            prompts[number] = [*tokens, *tokens_of(1000 + 10 * number + left[number], 12)]
            if left[number]:
                due[number] = steps + 2
            else:
                del left[number]
    return hits


def make_lanes(model_path: str, share: float) -> LoneScheduler:
    """Room for about half of eight contexts of 96 tokens and more. A wait for a round lasts for 30 s at most."""
    knobs: dict[str, Any] = {"order": {"load_control": share}, "segments": {"enabled": False}}
    lone = make_lone(model_path, "agentcache", blocks=44, engine={"max_num_seqs": 3}, **knobs)
    control = lone.scheduler.tracker.load_control
    find = control._find_longest_wait
    control._find_longest_wait = lambda: 30.0 if find() > 0 else 0.0
    return lone


def test_lanes_beyond_the_cache_hit_more_by_turns(tiny_model_path: str) -> None:
    with_turns, without = (
        sum(run_lanes(make_lanes(tiny_model_path, share), lanes=8, turns=6, seed=seed) for seed in range(3))
        for share in (1.0, 0.0)
    )
    assert with_turns > 1.5 * without


def test_lanes_that_fit_are_served_as_ever(tiny_model_path: str) -> None:
    with_turns, without = (run_lanes(make_lanes(tiny_model_path, share), lanes=2, turns=6) for share in (1.0, 0.0))
    assert with_turns == without


def test_the_policy_for_first_tokens_has_no_turns(tiny_model_path: str) -> None:
    for policy, has_turns in (("agentcache", True), ("agentcache-interactive", False), ("continuum-code", False)):
        lone = make_lone(tiny_model_path, policy, blocks=44)
        jobs = lone.scheduler.tracker.runtime.jobs.turn_counts
        for number in range(20):
            jobs.put(number, turns=1, tokens=400)
        assert (lone.scheduler.tracker.load_control._find_longest_wait() > 0) is has_turns


def lose_context(model_path: str) -> tuple[LoneScheduler, list[int]]:
    """A job whose context is lost, and what its next turn asks; turns wait for ever."""
    lone = make_lanes(model_path, 1.0)
    lone.scheduler.tracker.load_control._find_longest_wait = lambda: 1e6
    first = tokens_of(1, 200)
    lone.add("a", first, 4, calls=(SEARCH,), session_id="a")
    run_until_idle(lone)
    lone.pool.evict_blocks({block.block_id for block in lone.pool.blocks if block.block_hash is not None})
    return lone, [*first, *tokens_of(3, 40)]


def test_an_abort_while_it_waits_leaves_nothing(tiny_model_path: str) -> None:
    lone, prompt = lose_context(tiny_model_path)
    lone.add("runs", tokens_of(2, 100), 60)
    lone.step()
    lone.add("b", prompt, 4, calls=(SEARCH,), session_id="a")
    assert all("b" not in lone.step().scheduled for _ in range(10))
    lone.abort("b")
    run_until_idle(lone)
    lone.scheduler.check_integrity()


def test_it_goes_at_once_where_nothing_runs(tiny_model_path: str) -> None:
    lone, prompt = lose_context(tiny_model_path)
    lone.add("b", prompt, 4, calls=(SEARCH,), session_id="a")
    assert "b" in lone.step().scheduled
    run_until_idle(lone)
