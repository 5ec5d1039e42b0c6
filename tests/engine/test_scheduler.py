from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from lone_scheduler import BLOCK_SIZE, EOS, STOP_TOKEN, LoneScheduler, Step, make_config, make_scheduler
from sizes import pick_size
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from agentcache._evictor import UNKNOWN_REQUEST
from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.views import TurnView
from agentcache.errors import InputError, IntegrityError

# Four requests of the length below fill it: small enough for evictions and preemptions in every mix.
NUM_BLOCKS = 40
TURNS = 4


@dataclass
class JobMix:
    """Jobs that share a system prompt; each turn's prompt is the turn before, its reply and a tool's result.

    All that is random comes from one generator, so two schedulers are asked the same until they behave differently.
    """

    lone: LoneScheduler
    rng: random.Random
    jobs: int = 0
    aborts: int = 0
    resets: int = 0
    steps: list[Step] = field(default_factory=list)
    _due: list[tuple[int, str, list[int]]] = field(default_factory=list)

    def run(self, waves: int, wave_steps: int) -> None:
        """Jobs arrive for half of a wave; the next wave begins when all are done."""
        system = self._tokens(4 * BLOCK_SIZE + 5)
        for _ in range(waves):
            ends = len(self.steps) + wave_steps
            while len(self.steps) < ends or self._due or not self.lone.idle:
                if len(self.steps) < ends and self.rng.random() < 0.2:
                    self.jobs += 1
                    self._due.append((len(self.steps), f"job {self.jobs} turn 1", system + self._tokens(40)))
                self._step()
            if self.rng.random() < 0.7 or not self.resets:
                assert self.lone.scheduler.reset_prefix_cache()
                self.resets += 1

    def _step(self) -> None:
        now = len(self.steps)
        for _, name, prompt in [due for due in self._due if due[0] <= now]:
            # Half of the replies end at a token of their own; with two steps in flight the next one is under way then.
            reply = [*self._tokens(50), self.rng.choice((EOS, STOP_TOKEN))] if self.rng.random() < 0.5 else []
            self.lone.add(name, prompt, output_tokens=self.rng.randint(1, 60), reply=reply)
        self._due = [due for due in self._due if due[0] > now]
        if (live := list(self.lone.scheduler.requests)) and self.rng.random() < 0.02:
            self.lone.abort(self.rng.choice(live))
            self.aborts += 1
        step = self.lone.step()
        if isinstance(self.lone.scheduler, AgentScheduler):
            self.lone.scheduler.check_integrity()
        for name, tokens in step.finished.items():
            job, turn = name.rsplit(" ", 1)
            if int(turn) < TURNS:
                ready = now + self.rng.randint(1, 15)
                self._due.append((ready, f"{job} {int(turn) + 1}", tokens + self._tokens(30)))
        self.steps.append(step)

    def _tokens(self, most: int) -> list[int]:
        return [self.rng.randrange(8000) for _ in range(self.rng.randint(most // 2, most))]


def run_mix(scheduler: AsyncScheduler, seed: int, in_flight: int) -> JobMix:
    mix = JobMix(LoneScheduler(scheduler, in_flight), random.Random(seed))
    mix.run(waves=4, wave_steps=60)
    return mix


@pytest.mark.parametrize(("in_flight", "is_async"), [(1, True), (2, True), (1, False), (2, False)])
@pytest.mark.parametrize("seed", range(pick_size(1, 4)))
def test_policies_that_decide_nothing_equal_stock_step_by_step(
    tiny_model_path: str, seed: int, in_flight: int, is_async: bool
) -> None:
    """Two steps in flight without async scheduling are pipeline parallelism under the V1 model runner."""
    stock = run_mix(make_scheduler(make_config(tiny_model_path, None, is_async=is_async), NUM_BLOCKS), seed, in_flight)
    assert_eventful(stock)
    for policy, queue in (("vllm", FreeKVCacheBlockQueue), ("lru", BlockQueue), ("observe", BlockQueue)):
        config = make_config(tiny_model_path, SCHEDULER_CLASS, is_async=is_async, policy=policy)
        mix = run_mix(make_scheduler(config, NUM_BLOCKS), seed, in_flight)
        assert type(mix.lone.pool.free_block_queue) is queue
        for number, (step, expected) in enumerate(zip(mix.steps, stock.steps, strict=False)):
            assert step == expected, f"{policy}: step {number} differs"
        assert len(mix.steps) == len(stock.steps)


@pytest.mark.parametrize("is_async", [True, False])
def test_agentcache_with_two_steps_in_flight_loses_nothing(
    tiny_model_path: str, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipeline parallelism as well: without async scheduling a request waits for its token before its next step."""
    config = make_config(tiny_model_path, SCHEDULER_CLASS, is_async=is_async, policy="agentcache")
    scheduler = make_scheduler(config, NUM_BLOCKS, clock=itertools.count(1.0).__next__)
    turns: list[TurnView] = []
    monkeypatch.setattr(scheduler.tracker.stats, "add_turn", lambda _, turn, __: turns.append(turn))
    mix = JobMix(LoneScheduler(scheduler, in_flight=2, shadow=True), random.Random(3))
    mix.run(waves=2, wave_steps=60)
    assert_eventful(mix)
    served = Counter(turn.status for turn in turns)
    assert served["finished"] > 5
    assert served["finished"] + served["cut off"] == sum(len(step.finished) for step in mix.steps)
    assert served["aborted"] == mix.aborts


def run_under_counted_time(tiny_model_path: str, policy: str, seed: int) -> JobMix:
    """A look at the clock is a second, so that policies which know of time see it pass, the same in every run.

    From the start on: of a clock that is set later, gaps would be rounded by when that was.
    """
    config = make_config(tiny_model_path, SCHEDULER_CLASS, policy=policy, lifespan_s=200)
    scheduler = make_scheduler(config, NUM_BLOCKS, clock=itertools.count(1.0).__next__)
    return run_mix(scheduler, seed, in_flight=1)


def test_max_score_is_lru_while_blocks_are_equally_likely_reused(tiny_model_path: str) -> None:
    score, lru = (run_under_counted_time(tiny_model_path, name, seed=1) for name in ("max-score", "lru"))
    assert score.steps == lru.steps


@pytest.mark.parametrize("policy", ["asymcache", "pensieve"])
def test_policies_in_their_own_order_lose_no_block(tiny_model_path: str, policy: str) -> None:
    mix = run_under_counted_time(tiny_model_path, policy, seed=1)
    assert sum(len(step.evicted) for step in mix.steps) > 5 * NUM_BLOCKS
    assert max(tokens for step in mix.steps for tokens in step.hit_tokens.values()) > 0
    assert len(mix.steps[-1].free_blocks) == NUM_BLOCKS - 1
    lru = run_under_counted_time(tiny_model_path, "lru", seed=1)
    assert mix.steps != lru.steps, "the policy must make a difference to prove anything"


def assert_eventful(mix: JobMix) -> None:
    """What the policies are compared on has happened, and all blocks came back."""
    assert mix.jobs > 20
    assert mix.aborts
    assert mix.resets
    assert sum(len(step.preempted) for step in mix.steps) > 1
    assert sum(len(step.evicted) for step in mix.steps) > 5 * NUM_BLOCKS
    hits = [tokens for step in mix.steps for tokens in step.hit_tokens.values()]
    # More than the system prompt: turns found the turns before them.
    assert max(hits) > 8 * BLOCK_SIZE
    assert 0 in hits
    assert len(mix.steps[-1].free_blocks) == NUM_BLOCKS - 1


@pytest.mark.parametrize("is_async", [True, False])
def test_a_scheduler_is_asynchronous_where_vllm_is(tiny_model_path: str, is_async: bool) -> None:
    config = make_config(tiny_model_path, SCHEDULER_CLASS, is_async=is_async, policy="agentcache")
    scheduler = make_scheduler(config, NUM_BLOCKS)
    assert isinstance(scheduler, AgentScheduler)
    assert isinstance(scheduler, AsyncScheduler) == is_async
    # A policy that follows on the same engine has one made so.
    kind = type(scheduler)
    assert type(kind.__new__(kind, vllm_config=config)) is kind


def test_scheduler_checks_its_block_queue(tiny_model_path: str) -> None:
    scheduler = make_scheduler(make_config(tiny_model_path, SCHEDULER_CLASS, policy="lru"), NUM_BLOCKS)
    scheduler.check_integrity()
    scheduler.kv_cache_manager.block_pool.blocks[7].ref_cnt = 1
    with pytest.raises(IntegrityError, match=r"\[7\]"):
        scheduler.check_integrity()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"polcy": "lru"}, "additional_config: agentcache.polcy: no such knob"),
        ({"policy": "fifo"}, "--policy fifo: unknown; choose from "),
        ({"runtime": {"tool_parser": "hermse"}}, "runtime.tool_parser: hermse is unknown; choose from "),
    ],
)
def test_scheduler_refuses_a_config_that_cannot_be(
    tiny_model_path: str, knobs: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        make_scheduler(make_config(tiny_model_path, SCHEDULER_CLASS, **knobs), NUM_BLOCKS)


def test_a_turn_s_correction_factor_raises_its_blocks_value(
    tiny_model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tiny_model_path, SCHEDULER_CLASS, policy="asymcache", lifespan_s=200)
    scheduler = make_scheduler(config, NUM_BLOCKS)
    assert isinstance(scheduler, AgentScheduler)
    scheduler.clock = itertools.count(1.0).__next__
    lone = LoneScheduler(scheduler)
    for name, factor in (("precious", 1e6), ("plain", 1.0)):
        monkeypatch.setattr(scheduler.tracker.factors, "find", lambda _, factor=factor: factor)
        lone.add(name, [len(name)] * 5 * BLOCK_SIZE, output_tokens=1, calls=())
        while not lone.idle:
            lone.step()
    last = [block for block in scheduler.block_queue.get_all_free_blocks() if block.block_hash][-5:]
    lone.add("precious again", [len("precious")] * 5 * BLOCK_SIZE, output_tokens=1)
    hit = scheduler.kv_cache_manager.get_computed_blocks(scheduler.requests["precious again"])[0].blocks[0]
    assert {block.block_id for block in hit} < {block.block_id for block in last}
    assert scheduler.block_queue.context == UNKNOWN_REQUEST
