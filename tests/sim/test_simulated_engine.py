from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from made_simulation import ConstantGpu, make_engine
from vllm.platforms import current_platform

from agentcache.errors import InputError
from agentcache.policy.presets import find_step_cost
from agentcache.policy.step_cost import Row
from agentcache.sim.engine import RequestTimes, SimulatedEngine, StepOutcome
from agentcache.sim.engine_shape import EngineShape, make_config

BLOCK = 16


def step(engine: SimulatedEngine) -> StepOutcome:
    engine.clock.advance_to(engine.begin_step())
    return engine.end_step()


def finish_all(engine: SimulatedEngine) -> dict[str, RequestTimes]:
    finished: dict[str, RequestTimes] = {}
    while not engine.idle:
        finished |= {times.request_id: times for times in step(engine).finished}
    return finished


@dataclass
class ChatMix:
    """Chats whose turns come when the turn before is done, more of them than the cache can hold at once."""

    engine: SimulatedEngine
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    outcomes: list[StepOutcome] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def run(self, chats: int, turns: int) -> None:
        open_chats = {f"chat {number}": self._tokens(60) for number in range(chats)}
        waiting, turn_of = dict(open_chats), dict.fromkeys(open_chats, 0)
        while waiting or not self.engine.idle:
            for name in [name for name in waiting if self.rng.random() < 0.5]:
                reply = self._tokens(50)
                self.engine.add(name, waiting.pop(name), reply)
                open_chats[name] = [*open_chats[name], *reply]
            outcome = self._step()
            self.engine.scheduler.check_integrity()
            self.outcomes.append(outcome)
            for times in outcome.finished:
                assert times.cached_tokens is not None
                self.cached.append(times.cached_tokens)
                turn_of[times.request_id] += 1
                if turn_of[times.request_id] < turns:
                    open_chats[times.request_id] += self._tokens(30)
                    waiting[times.request_id] = open_chats[times.request_id]

    def _step(self) -> StepOutcome:
        """As many steps begin as the engine takes, and the first of them ends."""
        while self.engine.can_begin:
            self.ends.append(self.engine.begin_step())
        self.engine.clock.advance_to(self.ends.pop(0))
        return self.engine.end_step()

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(8000) for _ in range(count)]


def run_mix(model_path: str, policy: str, cache_tokens: int, *, async_scheduling: bool = False) -> ChatMix:
    engine = make_engine(
        model_path,
        policy,
        cache_tokens=cache_tokens,
        max_num_batched_tokens=64,
        max_num_seqs=6,
        async_scheduling=async_scheduling,
    )
    mix = ChatMix(engine)
    mix.run(chats=8, turns=4)
    assert len(mix.cached) == 8 * 4
    return mix


def test_smaller_caches_hit_less_and_preempt_more(tiny_model_path: str) -> None:
    mixes = [run_mix(tiny_model_path, "lru", cache_tokens) for cache_tokens in (8192, 1024, 640)]
    hits = [sum(mix.cached) for mix in mixes]
    assert hits[0] > 2 * hits[1] > 4 * hits[2]
    preemptions = [mix.engine.preemptions for mix in mixes]
    assert preemptions[0] == 0
    assert preemptions[2] > preemptions[1] > 0
    assert preemptions[2] == sum(len(outcome.preempted) for outcome in mixes[2].outcomes)


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_policies_vllm_and_lru_do_the_same_step_by_step(ahead: bool, tiny_model_path: str) -> None:
    stock, ours = (run_mix(tiny_model_path, policy, 640, async_scheduling=ahead) for policy in ("vllm", "lru"))
    assert stock.engine.preemptions > 0
    assert ours.outcomes == stock.outcomes
    assert ours.engine.prefill_s == stock.engine.prefill_s


def test_gpu_is_asked_for_the_batch_that_vllm_made(tiny_model_path: str) -> None:
    gpu = ConstantGpu()
    engine = make_engine(tiny_model_path, gpu=gpu, max_num_batched_tokens=64, max_num_seqs=4)
    engine.add("long", list(range(100)), [1, 2, 3])
    engine.add("short", list(range(200, 210)), [4, 5])
    finished = finish_all(engine)
    # The second step has the rest of the long prompt and all of the short one; then a decode of each, then of one.
    steps = [[Row(64, 0)], [Row(36, 64), Row(10, 0)], [Row(1, 100), Row(1, 10)], [Row(1, 101)]]
    assert [batch for batch in gpu.batches if batch] == steps
    assert engine.prefill_s == 2.0
    assert finished["long"] == RequestTimes("long", 0.0, 0.0, 2.0, 4.0, 0)
    assert finished["short"] == RequestTimes("short", 0.0, 1.0, 2.0, 3.0, 0)


def test_prefill_is_what_it_adds_to_the_decodes_beside_it(tiny_model_path: str) -> None:
    gpu = find_step_cost("llama-3.1-8b", "h200")
    engine = make_engine(tiny_model_path, gpu=gpu)
    engine.add("first", list(range(40)), list(range(9)))
    step(engine)
    assert engine.prefill_s == gpu.step_s([Row(40, 0)])
    engine.add("second", list(range(1000, 1300)), [1])
    before = engine.prefill_s
    outcome = step(engine)
    both = gpu.step_s([Row(300, 0), Row(1, 40)])
    assert outcome.ended_s - outcome.started_s == pytest.approx(both)
    assert engine.prefill_s - before == pytest.approx(both - gpu.step_s([Row(1, 40)]))
    spent = engine.prefill_s
    finish_all(engine)
    assert engine.prefill_s == spent, "decodes alone are no prefill"


def test_forced_reply_is_what_the_next_turn_finds_in_the_cache(tiny_model_path: str) -> None:
    engine = make_engine(tiny_model_path)
    prompt, reply = list(range(50)), list(range(500, 540))
    engine.add("one", prompt, reply)
    finish_all(engine)
    engine.add("two", [*prompt, *reply, *range(20)], [1])
    engine.add("other reply", [*prompt, *reversed(reply), *range(20)], [1])
    finished = finish_all(engine)
    # The last token of a reply is never fed back.
    assert finished["two"].cached_tokens == (len(prompt) + len(reply) - 1) // BLOCK * BLOCK
    assert finished["other reply"].cached_tokens == len(prompt) // BLOCK * BLOCK


def test_aborted_request_is_gone_even_from_the_step_under_way(tiny_model_path: str) -> None:
    engine = make_engine(tiny_model_path)
    engine.add("stays", list(range(40)), [1, 2])
    engine.add("goes", list(range(100, 140)), [3, 4])
    engine.clock.advance_to(engine.begin_step())
    engine.abort("goes")
    assert [times.request_id for times in engine.end_step().first_tokens] == ["stays"]
    assert list(finish_all(engine)) == ["stays"]
    engine.scheduler.check_integrity()
    assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 1000


def test_what_vllm_refuses_is_one_line(tiny_model_path: str) -> None:
    with pytest.raises(InputError, match=r"^vLLM refuses the options: [^\n]+$"):
        make_engine(tiny_model_path, max_num_batched_tokens=8, max_num_seqs=64)


def test_request_during_a_step_is_in_the_one_after_the_next(tiny_model_path: str) -> None:
    gpu = ConstantGpu()
    engine = make_engine(tiny_model_path, gpu=gpu, async_scheduling=True)
    engine.add("first", list(range(40)), [1, 2, 3])
    assert [engine.begin_step(), engine.begin_step()] == [1.0, 2.0]
    assert not engine.can_begin
    engine.clock.advance_to(0.5)
    engine.add("second", list(range(100, 120)), [4])
    engine.clock.advance_to(1.0)
    assert [times.request_id for times in engine.end_step().first_tokens] == ["first"]
    assert engine.begin_step() == 3.0
    assert gpu.batches[-2:] == [[Row(20, 0), Row(1, 41)], [Row(1, 41)]], "the batch, and what it costs without prefill"
    engine.clock.advance_to(2.0)
    engine.end_step()
    # All that is left is under way.
    assert engine.begin_step() == 3.0
    engine.clock.advance_to(3.0)
    finished = {times.request_id: times for times in engine.end_step().finished}
    assert finished["second"] == RequestTimes("second", 0.5, 1.0, 3.0, 3.0, 0)
    assert finished["first"].finished_s == 3.0
    assert engine.end_step().scheduled_tokens == 0
    assert engine.idle


def test_a_chunk_gives_no_token_though_the_next_is_scheduled(tiny_model_path: str) -> None:
    engine = make_engine(tiny_model_path, async_scheduling=True, max_num_batched_tokens=64, max_num_seqs=4)
    engine.add("long", list(range(150)), [7, 8])
    mix = ChatMix(engine)
    outcomes = [mix._step() for _ in range(4)]
    assert [outcome.scheduled_tokens for outcome in outcomes] == [64, 64, 22, 1]
    assert [len(outcome.first_tokens) for outcome in outcomes] == [0, 0, 1, 0]
    assert [len(outcome.finished) for outcome in outcomes] == [0, 0, 0, 1]


@pytest.mark.parametrize("policy", ["vllm", "agentcache"])
def test_replies_come_whole_under_pressure_with_a_step_ahead(policy: str, tiny_model_path: str) -> None:
    mix = run_mix(tiny_model_path, policy, 640, async_scheduling=True)
    assert mix.engine.preemptions > 0
    tokens = sum(outcome.scheduled_tokens for outcome in mix.outcomes)
    assert tokens > 8 * 4 * 50
    assert mix.engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 640 // BLOCK


def test_several_gpus_are_simulated_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tiny_model_path: str) -> None:
    # So vLLM counts the GPUs, where it is made for NVIDIA's.
    monkeypatch.setattr(current_platform, "is_cuda", lambda: True)
    monkeypatch.setattr(current_platform, "device_count", lambda: 1, raising=False)
    shape = EngineShape(
        model_path=tiny_model_path,
        cache_tokens=4096,
        block_size=16,
        max_num_batched_tokens=512,
        max_num_seqs=8,
        tensor_parallel_size=2,
    )
    assert make_config(shape, "agentcache").parallel_config.world_size == 2
