"""Where jobs want more than the caches hold, turns that compute their contexts go one at a time, each when it pays."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hand_clock import Clock
from lone_scheduler import LoneScheduler
from steered_scheduler import make_lone, make_patient, run_until_idle, tokens_of
from tracked_requests import ASKED, BLOCK, SHARE, Tracked, make_demand
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock
from vllm.v1.request import Request, RequestStatus
from waiting_requests import SEARCH, make_waiting

from agentcache.engine.order.load_control import LoadControl
from agentcache.policy.runtime_policy import LONGEST_S


def make_controlled(pinned: int = 100) -> Tracked:
    """Jobs want more than there is room for, and the first turn has just taken pinned blocks: others wait."""
    tracked = make_waiting(pinned=pinned, protect_waiting=True)
    tracked.short = True
    tracked.tracker.step()
    first = tracked.ask("first", ASKED, session="first")
    assert not tracked.tracker.find_wait(first, available=100), "nothing went before it"
    tracked.admit(first)
    return tracked


# Until then: it computed all of its prompt, a second a token.
PAID_S = Clock().now_s + len(ASKED) / SHARE


def count_blocks(request: Request) -> int:
    return -(-request.num_tokens // BLOCK)


def make_hits(count: int) -> list[KVCacheBlock]:
    hits = [KVCacheBlock(number) for number in range(count)]
    for number, block in enumerate(hits):
        block.set_block_hash(BlockHashWithGroupId(b"any"), num_tokens=(number + 1) * BLOCK)
    return hits


def come_back(tracked: Tracked, name: str, kept_blocks: int = 0) -> Request:
    """A job's second turn, of whose prompt so many blocks are cached still; its first went while there was room."""
    short, tracked.short = tracked.short, False
    tracked.tracker.step()
    history = tracked.turn(f"{name} first", ASKED, session=name, calls=(SEARCH,))
    tracked.short = short
    tracked.tracker.step()
    tracked.hits = make_hits(kept_blocks)
    request = tracked.ask(f"{name} second", [*history, 5], session=name)
    tracked.hits = []
    tracked.tracker.step()
    return request


def make_lost(tokens: int) -> tuple[Any, Any]:
    """A request of so many tokens, none of them cached, and its state."""
    turn = SimpleNamespace(arrived_s=0.0)
    entry = SimpleNamespace(turns=1)
    state = SimpleNamespace(entry=entry, turn=turn, kept_tokens=0, look_again_s=math.inf, was_held=False)
    return SimpleNamespace(request_id="another", num_tokens=tokens), state


def compute_another(control: LoadControl, tokens: int, now_s: float) -> None:
    """Have a request of so many tokens, none of them cached, begin now."""
    request, state = make_lost(tokens)
    assert not control.holds(request, state, now_s)
    control.admitted(request, state, now_s)


def test_a_turn_without_its_context_waits_and_lets_others_pass() -> None:
    tracked = make_controlled()
    lost, kept = come_back(tracked, "lost"), come_back(tracked, "kept", kept_blocks=5)
    tracked.hits = make_hits(5)
    tracked.clock.now_s += 10.0
    for _ in range(2):
        tracked.hits = []
        assert tracked.tracker.find_wait(lost, available=100) == "load"
        tracked.hits = make_hits(5)
        assert not tracked.tracker.find_wait(kept, available=100), "it is out of patience"
    assert tracked.tracker.waiting.load_control.held_turns == 1, "a turn counts once"


def test_a_turn_that_goes_since_nothing_runs_delays_the_next() -> None:
    tracked = make_controlled()
    alone, behind = come_back(tracked, "alone"), come_back(tracked, "behind")
    begins_s = tracked.clock.now_s = PAID_S - 1.0
    tracked.admit(alone)
    tracked.clock.now_s = PAID_S + 1.0
    tracked.tracker.step()
    assert tracked.tracker.find_wait(behind, available=100) == "load"
    tracked.clock.now_s = begins_s + alone.num_tokens / SHARE
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(behind, available=100)


def test_a_small_turn_behind_a_large_one_shortens_no_wait() -> None:
    tracked = make_controlled()
    small = tracked.ask("small", ASKED[:2], session="small")
    tracked.admit(small)
    lost = come_back(tracked, "lost")
    tracked.clock.now_s = PAID_S - 1.0
    tracked.tracker.step()
    assert tracked.tracker.find_wait(lost, available=100) == "load"


@pytest.mark.parametrize("pinned", [0, 50])
def test_it_waits_however_much_is_free(pinned: int) -> None:
    """Beside a CPU cache pins are short; what it takes is still another job's."""
    tracked = make_controlled()
    request = come_back(tracked, "a")
    tracked.clock.now_s += 10.0
    tracked.pins.blocks = pinned
    assert tracked.tracker.find_wait(request, available=10_000) == "load"


def test_it_goes_on_once_others_have_computed_its_context() -> None:
    """As of sub-agents that share it: it is looked at again, but not in each step."""
    tracked = make_controlled()
    request = come_back(tracked, "a")
    tracked.looks.clear()
    for _ in range(150):
        tracked.clock.now_s += 0.1
        tracked.tracker.step()
        assert tracked.tracker.find_wait(request, available=100)
    assert tracked.looks == [request] * 4, "after 1, 2, 4 and 8 s"
    tracked.hits = make_hits(5)
    tracked.clock.now_s += 1.1
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(request, available=100)


def test_what_is_left_of_its_context_is_not_kept_for_it() -> None:
    tracked = make_controlled()
    guarded: list[str] = []
    tracked.pins.guard = lambda request_id, *_: guarded.append(request_id)
    lost, kept = come_back(tracked, "lost", kept_blocks=1), come_back(tracked, "kept", kept_blocks=5)
    assert tracked.tracker.find_wait(lost, available=100)
    assert guarded == [kept.request_id]
    tracked.short = False
    tracked.tracker.step()
    fits = come_back(tracked, "fits", kept_blocks=1)
    assert guarded == [kept.request_id, fits.request_id], "it goes on at once"


def make_due() -> tuple[Tracked, Request, Request]:
    """Two turns wait, and it is the first one's turn."""
    tracked = make_controlled()
    first, second = come_back(tracked, "a"), come_back(tracked, "b")
    tracked.clock.now_s = PAID_S
    assert not tracked.tracker.find_wait(first, available=100)
    return tracked, first, second


def test_it_waits_until_the_one_before_has_paid() -> None:
    tracked = make_controlled()
    request = come_back(tracked, "a")
    tracked.clock.now_s = PAID_S - 0.1
    assert tracked.tracker.find_wait(request, available=100), "whatever its patience"
    tracked.clock.now_s = PAID_S
    assert not tracked.tracker.find_wait(request, available=100)


@pytest.mark.parametrize(("refills", "longer"), [(0.0, 1.0), (1.0, 1.0), (1.5, 1.5)])
def test_the_share_grows_where_the_caches_hold_few_jobs(refills: float, longer: float) -> None:
    tracked = make_controlled()
    first, second = come_back(tracked, "a"), come_back(tracked, "b")
    tracked.refills = refills
    tracked.clock.now_s = PAID_S
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(first, available=100)
    tracked.admit(first)
    for before_s, waits in ((0.1, True), (0.0, False)):
        tracked.clock.now_s = PAID_S + first.num_tokens / (SHARE * longer) - before_s
        tracked.tracker.step()
        assert (tracked.tracker.find_wait(second, available=100) == "load") is waits


def test_a_share_of_all_holds_none() -> None:
    tracked = make_controlled(pinned=0)
    first, second = come_back(tracked, "a"), come_back(tracked, "b")
    tracked.refills = 1 / SHARE
    tracked.tracker.step()
    for request in (first, second):
        assert not tracked.tracker.find_wait(request, available=100)
        tracked.admit(request)


def test_turns_go_one_at_a_time() -> None:
    tracked, first, second = make_due()
    assert tracked.tracker.find_wait(second, available=100), "in this step it is the other's turn"
    tracked.admit(first)
    assert tracked.tracker.find_wait(second, available=100)
    tracked.clock.now_s += first.num_tokens / SHARE
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(second, available=100)


def test_a_turn_that_aborts_leaves_its_place_to_the_next() -> None:
    tracked, first, second = make_due()
    tracked.reply(first, status=RequestStatus.FINISHED_ABORTED)
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(second, available=100)


def test_a_turn_that_finds_its_context_delays_no_other() -> None:
    tracked = make_controlled()
    kept, lost = come_back(tracked, "kept", kept_blocks=5), come_back(tracked, "lost")
    tracked.clock.now_s, tracked.hits = PAID_S, make_hits(5)
    assert not tracked.tracker.find_wait(kept, available=100)
    tracked.admit(kept)
    tracked.hits = []
    assert not tracked.tracker.find_wait(lost, available=100)


def test_no_wait_outlasts_a_client() -> None:
    """The clients of OpenAI and Anthropic give up after 600 s."""
    assert LONGEST_S <= 0.75 * 600
    tracked = make_controlled()
    request = come_back(tracked, "a")
    compute_another(tracked.tracker.waiting.load_control, 1_000_000, tracked.clock())
    tracked.clock.now_s += LONGEST_S - 1
    assert tracked.tracker.find_wait(request, available=100)
    tracked.clock.now_s += 1
    assert not tracked.tracker.find_wait(request, available=100)


def test_none_waits_where_all_contexts_fit() -> None:
    tracked = make_controlled()
    request = come_back(tracked, "a")
    tracked.clock.now_s += 10.0
    tracked.short = False
    tracked.tracker.step()
    assert not tracked.tracker.find_wait(request, available=100)


def test_a_preempted_request_goes_on() -> None:
    tracked = make_controlled()
    request = come_back(tracked, "a")
    request.status = RequestStatus.PREEMPTED
    assert not tracked.tracker.find_wait(request, available=100)


def test_what_the_host_s_memory_has_is_not_lost() -> None:
    tracked = make_controlled()
    tracked.elsewhere = 5
    request = come_back(tracked, "a")
    tracked.clock.now_s += 10.0
    assert not tracked.tracker.find_wait(request, available=100)


def make_small(model_path: str) -> LoneScheduler:
    """Room for 704 tokens; pins hold."""
    return make_patient(model_path, "agentcache", blocks=44, engine={"max_num_seqs": 3}, segments={"enabled": False})


def test_the_policy_for_first_tokens_has_no_turns(tiny_model_path: str) -> None:
    for policy, has_turns in (("agentcache", True), ("agentcache-interactive", False), ("continuum-code", False)):
        lone = make_lone(tiny_model_path, policy, blocks=44)
        jobs = lone.scheduler.tracker.runtime.jobs.turn_counts
        jobs.put(1, turns=1)
        jobs.blocks.put(1, "turn", [b"%d" % place for place in range(500)])
        control = lone.scheduler.tracker.waiting.load_control
        assert control.demand.exceeds_room()
        control.step()
        assert control.limits(*make_lost(100), now_s=0.0) is has_turns


def lose_context(model_path: str, *, short: bool = True) -> tuple[LoneScheduler, list[int]]:
    """A job whose context is lost, and what its next turn asks. Another's is pinned, and something runs.

    Where jobs want more than there is room for, another context was computed just now.
    """
    lone = make_small(model_path)
    control, now_s = lone.scheduler.tracker.waiting.load_control, lone.scheduler.clock()
    control.demand = make_demand(lambda: short)
    control.step()
    compute_another(control, 100_000, now_s)
    first = tokens_of(1, 200)
    lone.add("a", first, 4, calls=(SEARCH,), session_id="a")
    run_until_idle(lone)
    lone.pool.evict_blocks({block.block_id for block in lone.pool.blocks if block.block_hash is not None})
    lone.add("pinned", tokens_of(4, 300), 4, calls=(SEARCH,), session_id="other")
    run_until_idle(lone)
    lone.add("runs", tokens_of(2, 100), 200)
    lone.step()
    return lone, [*first, *tokens_of(3, 40)]


@pytest.mark.parametrize("short", [True, False])
def test_the_others_keep_their_contexts_meanwhile(tiny_model_path: str, short: bool) -> None:
    lone, prompt = lose_context(tiny_model_path, short=short)
    lone.add("b", prompt, 30, calls=(SEARCH,), session_id="a")
    for _ in range(20):
        lone.scheduler.clock.now_s += 1.0
        lone.step()
    lone.add("back", [*tokens_of(4, 300), 1, 2], 4, calls=(SEARCH,), session_id="other")
    hits: dict[str, int] = {}
    for _ in range(20):
        hits |= lone.step().hit_tokens
        lone.scheduler.check_integrity()
    kept = 300 // 16 * 16
    assert (hits.get("back") == kept) is short, "it is out of patience, but others go before it"


def test_a_small_turn_is_not_held(tiny_model_path: str) -> None:
    lone, prompt = lose_context(tiny_model_path)
    lone.add("b", prompt, 4, calls=(SEARCH,), session_id="a")
    assert "b" in lone.step().scheduled
    assert not lone.scheduler.tracker.waiting.load_control.held_turns
    run_until_idle(lone)


def test_an_abort_while_it_waits_leaves_nothing(tiny_model_path: str) -> None:
    lone, prompt = lose_context(tiny_model_path)
    lone.add("b", prompt, 30, calls=(SEARCH,), session_id="a")
    assert all("b" not in lone.step().scheduled for _ in range(10))
    lone.abort("b")
    run_until_idle(lone)
    lone.scheduler.check_integrity()


def test_it_goes_at_once_where_nothing_runs(tiny_model_path: str) -> None:
    lone, prompt = lose_context(tiny_model_path)
    lone.abort("runs")
    lone.add("b", prompt, 30, calls=(SEARCH,), session_id="a")
    assert "b" in lone.step().scheduled
    run_until_idle(lone)


@pytest.mark.parametrize("sharing", [8, 0])
def test_a_context_of_many_jobs_is_wanted_once(tiny_model_path: str, sharing: int) -> None:
    """Eight jobs of 160 tokens want 1,280, or, if they share nearly all, 288: the cache has room for 704."""
    lone = make_small(tiny_model_path)
    for number in range(8):
        prompt = [*tokens_of(9 if number < sharing else number, 144), *tokens_of(100 + number, 16)]
        lone.add(f"{number}", prompt, 4, calls=(SEARCH,), session_id=f"{number}")
        run_until_idle(lone)
    assert len(lone.scheduler.tracker.runtime.jobs.turn_counts.blocks) == (9 + 8 if sharing else 80)
    assert lone.scheduler.tracker.waiting.load_control.demand.exceeds_room() is (sharing == 0)
    lone.scheduler.check_integrity()
