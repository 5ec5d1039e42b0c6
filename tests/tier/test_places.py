"""Where hits came from and where misses were lost, of two caches under one scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from lone_scheduler import BLOCK_SIZE
from sizes import pick_size
from tiered_jobs import PROMPT, ask, make_evicted, make_tokens, push_out, run_at_random
from tiered_scheduler import TieredScheduler, make_tiered
from tracked_requests import make_demand
from vllm.v1.core.kv_cache_utils import BlockHash, BlockHashWithGroupId, KVCacheBlock, make_block_hash_with_group_id

from agentcache.engine.cached_blocks import WatchedBlockMap
from agentcache.engine.observe.misses import Eviction
from agentcache.engine.rpc.job_views import count_runtime, view_ended, view_jobs, view_session
from agentcache.engine.rpc.snapshot import make_snapshot
from agentcache.engine.views import PLACE_OF, TurnView
from agentcache.policy.link_profile import Link

WHOLE = len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE


def come_back(lone: TieredScheduler) -> TurnView:
    """The job asks again, and its turn is over."""
    ask(lone, "mine/1", PROMPT + make_tokens(9, 30))
    lone.run_until_idle()
    (job,) = view_session(lone.scheduler.tracker, "mine")
    turn = job.turns[-1]
    assert (job.hits, job.evicted_from) == (add_up(job.turns, "hits"), add_up(job.turns, "evicted_from"))
    counts = count_runtime(lone.scheduler.tracker)
    assert counts.evicted_from == turn.evicted_from, "others have missed nothing"
    assert sum(counts.hits.values()) == counts.hit_tokens
    return turn


def add_up(turns: Sequence[TurnView], name: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for turn in turns:
        total.update(getattr(turn, name))
    return dict(total)


def test_fetched_tokens_are_hits_from_the_host(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    turn = come_back(lone)
    assert turn.cached_tokens == WHOLE
    assert turn.hits == {"gpu": 0, "host": WHOLE}
    assert turn.evicted_from == {}
    tier = make_snapshot(lone.scheduler).tier
    assert tier is not None
    assert tier.block_bytes == 2 * 2 * 32 * 4 * BLOCK_SIZE
    assert tier.fetched == WHOLE // BLOCK_SIZE


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_the_host_has_need_not_wait_for_its_turn(tiny_model_path: str, is_lost: bool) -> None:
    """Where jobs want more than both caches hold, those wait whose context neither has."""
    lone = make_evicted(tiny_model_path)
    lone.scheduler.tracker.waiting.load_control.demand = make_demand(lambda: True)
    if is_lost:
        lone.scheduler.tier.host.reset()
    ask(lone, "runs/0", make_tokens(8, 40), tokens=100)
    lone.step()
    ask(lone, "mine/1", PROMPT + make_tokens(9, 30))
    tracker = lone.scheduler.tracker
    tracker.step()
    request = lone.scheduler.requests["mine/1"]
    assert tracker.waiting.load_control.limits(request, tracker.states["mine/1"], tracker.clock()) is is_lost
    lone.run_until_idle()


def test_what_the_gpu_still_had_is_a_hit_there(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    assert come_back(lone).hits == {"gpu": WHOLE, "host": 0}


def test_a_cache_left_to_vllm_tells_places_and_no_losses(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path, policy="agentcache", tier={"enabled": False})
    assert lone.scheduler.tier is None
    for turn in range(2):
        ask(lone, f"mine/{turn}", PROMPT)
        for _ in range(20):
            lone.step()
    (job,) = view_session(lone.scheduler.tracker, "mine")
    assert job.turns[1].cached_tokens > 0
    hits = [{"gpu": turn.cached_tokens, "host": 0} for turn in job.turns]
    assert [(turn.hits, turn.evicted_from) for turn in job.turns] == [(hits[0], {}), (hits[1], {})]
    assert make_snapshot(lone.scheduler).tier is None


def test_a_wait_lasts_until_the_blocks_are_there(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    ask(lone, "mine/1", PROMPT + make_tokens(9, 30))
    lone.pace = 0.0
    for _ in range(5):
        lone.step()
    lone.pace = 1.0
    lone.run_until_idle()
    (job,) = view_session(lone.scheduler.tracker, "mine")
    # Until the first step looks at it, and from there to the seventh, in which it runs.
    assert job.turns[-1].waits == {"batch full": 1.0, "fetch": 6.0}


def test_never_chosen(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    lone.store_ahead(0, most=0)
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    push_out(lone, 1, 2, 3)
    turn = come_back(lone)
    assert turn.evicted_from == {"never chosen": WHOLE} == {"never chosen": turn.misses["evicted"]}
    assert {(loss.place, (loss.taker or "")[:5]) for loss in turn.lost_to} == {("gpu", "other")}


def test_not_worth_a_copy(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    lone.scheduler.tier.storing.usefulness.is_useful = lambda _: False
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    push_out(lone, 1, 2, 3)
    assert come_back(lone).evicted_from == {"not worth a copy": WHOLE}


def test_overwritten_before_it_was_copied(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    lone.pace = 0.0
    lone.store_ahead()
    ask(lone, "mine/0", PROMPT)
    while lone.scheduler.requests:
        lone.step()
    lone.step()
    lone.pool.free_blocks(lone.pool.get_new_blocks(lone.pool.get_num_free_blocks()))
    lone.pace = 1.0
    turn = come_back(lone)
    assert lone.scheduler.tier.counts.overwritten >= WHOLE // BLOCK_SIZE
    assert turn.evicted_from == {"overwritten": WHOLE}


def test_no_room_while_all_of_the_host_is_being_copied_to(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path, host_blocks=3)
    lone.pace = 0.0
    lone.store_ahead()
    ask(lone, "mine/0", PROMPT)
    while lone.scheduler.requests:
        lone.step()
    for _ in range(3):
        lone.step()
    lone.pool.free_blocks(lone.pool.get_new_blocks(lone.pool.get_num_free_blocks()))
    lone.pace = 1.0
    found = come_back(lone).evicted_from
    assert found == {"overwritten": 2 * BLOCK_SIZE, "no room": WHOLE - 2 * BLOCK_SIZE}


def test_evicted_from_the_host(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path, host_blocks=12)
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    push_out(lone, *range(1, 9))
    assert not any(lone.scheduler.tier.host.map.holds(key) for key in find_keys(lone))
    turn = come_back(lone)
    assert turn.evicted_from["evicted"] > 0
    assert turn.evicted_from["evicted"] == sum(loss.tokens for loss in turn.lost_to if loss.place == "host")
    assert {loss.taker for loss in turn.lost_to if loss.place == "host"} == {None}


def find_keys(lone: TieredScheduler) -> list[BlockHashWithGroupId]:
    return [make_block_hash_with_group_id(each, 0) for each in lone.make_request("", PROMPT).block_hashes]


def test_a_copy_lost_before_its_block_counts_as_the_hosts(tiny_model_path: str) -> None:
    lone = make_tiered(tiny_model_path)
    tier = lone.scheduler.tier
    lone.store_ahead()
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    lone.store_ahead(0, most=0)
    tier.host.give_back(tier.host.reserve(tier.counts.total))
    lost_s = lone.scheduler.clock.now_s
    push_out(lone, 1, 2, 3)
    turn = come_back(lone)
    assert turn.evicted_from == {"evicted": WHOLE}
    (loss,) = turn.lost_to
    assert loss.evicted_s > lost_s, "the GPU had it until then"


def test_what_is_there_and_not_fetched_is_told(tiny_model_path: str) -> None:
    lone = make_evicted(tiny_model_path)
    lone.scheduler.tier.fetching.link = Link(latency_s=1e9, block_s=1e9)
    turn = come_back(lone)
    assert (turn.evicted_from, turn.lost_to) == ({"not fetched": WHOLE}, ())


class Oracle:
    """Knows of every block, by its hash, whether the CPU cache has had it since it was computed last."""

    def __init__(self, lone: TieredScheduler, patch: pytest.MonkeyPatch) -> None:
        self._unsure: set[BlockHashWithGroupId] = set()
        self._gpu: WatchedBlockMap = lone.pool.cached_block_hash_to_block
        self._host: WatchedBlockMap = lone.scheduler.tier.host.map
        self._lone = lone
        self._had: set[BlockHashWithGroupId] = set()
        # The same when a block was computed anew: so it had been until then.
        self._had_before: dict[BlockHashWithGroupId, bool] = {}
        ledger = lone.scheduler.tier.storing.ledger
        self._take = ledger.take
        patch.setattr(ledger, "take", self.take)
        self._insert = WatchedBlockMap.insert
        note = self.note

        def insert(cache: WatchedBlockMap, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
            note(cache, key, block)

        patch.setattr(WatchedBlockMap, "insert", insert)
        self._reset = lone.scheduler.tier.host.reset
        patch.setattr(lone.scheduler.tier.host, "reset", self.reset)

    def note(self, cache: WatchedBlockMap, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        if cache is self._host:
            self._had.add(key)
        elif not cache.holds(key):
            self._had_before[key] = key in self._had
            if not self._host.holds(key):
                self._had.discard(key)
        self._insert(cache, key, block)

    def reset(self) -> None:
        """What is there is lost by no eviction, but may have been lost there by one before."""
        self._unsure.update(filter(self._host.holds, self._had))
        self._reset()

    def take(self, hashes: Sequence[bytes], missed: Sequence[int]) -> dict[int, Eviction]:
        evicted = self._take(hashes, missed)
        for index, eviction in evicted.items():
            key = make_block_hash_with_group_id(BlockHash(hashes[index]), 0)
            if key in self._unsure or eviction.cause is None:
                continue
            is_computed = self._lone.pool.cached_block_hash_to_block.holds(key)
            had = self._had_before[key] if is_computed else key in self._had
            assert PLACE_OF[eviction.cause] == ("host" if had else "gpu"), eviction
            assert (eviction.cause == "not fetched") == self._host.holds(key)
        return evicted


@pytest.mark.parametrize("seed", range(pick_size(3, 60)))
def test_places_agree_with_an_oracle(seed: int, tiny_model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lone = run_at_random(tiny_model_path, seed, lambda lone: Oracle(lone, monkeypatch))
    turns = [
        turn
        for job in (
            *view_jobs(lone.scheduler.tracker),
            *view_ended(lone.scheduler.tracker.stats, lone.scheduler.tracker.clock()),
        )
        for turn in job.turns
    ]
    assert turns
    for turn in turns:
        assert sum(turn.hits.values()) == turn.cached_tokens
        assert sum(turn.evicted_from.values()) <= turn.misses.get("evicted", 0)
