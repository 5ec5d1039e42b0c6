"""Replies that end at a token of their own while their next step is under way: vLLM's asynchronous scheduling."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from grouped_scheduler import CHUNKED, FULL, RECURRENT, WINDOW, make_lone
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_scheduler import BLOCK_SIZE, EOS, STOP_TOKEN, LoneScheduler
from sizes import pick_size
from steered_scheduler import SEARCH, Life, learn_that_tools_are_fast, run_until_idle, tokens_of
from transformers import AutoTokenizer
from vllm.v1.kv_cache_interface import KVCacheSpec

from agentcache._evictor import FreeContext
from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.jobs.finish_classes import OVER, PREEMPTED, UNKNOWN
from agentcache.engine.rpc.job_views import view_session

FAMILIES: dict[str, list[KVCacheSpec]] = {
    "full": [FULL],
    "window": [WINDOW, FULL],
    "chunk": [CHUNKED, FULL],
    "state": [RECURRENT, FULL],
    "windows alone": [WINDOW],
}
PROMPT = 9 * BLOCK_SIZE + 5


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FreeContext, int]]:
    """The blocks with reusable KV that were freed, each with its context."""
    calls: list[tuple[FreeContext, int]] = []
    append_n = BlockQueue.append_n

    def note(queue: BlockQueue, blocks: Any) -> None:
        calls.extend((queue.context, block.block_id) for block in blocks)
        append_n(queue, blocks)

    monkeypatch.setattr(BlockQueue, "append_n", note)
    return calls


def make_async(model_path: str, specs: list[KVCacheSpec], blocks: int = 101, in_flight: int = 2) -> LoneScheduler:
    # The shadow cache knows no states.
    shadow = RECURRENT not in specs
    return make_lone(model_path, specs, blocks, in_flight=in_flight, shadow=shadow, policy="agentcache")


def answer(lone: LoneScheduler, reply: list[int]) -> int:
    """Serve a turn with this reply and the next one; return what that hits."""
    prompt = tokens_of(1, PROMPT)
    lone.add("one", prompt, 200, calls=(SEARCH,), reply=reply, session_id="job")
    ends = [step.finished["one"] for step in run_until_idle(lone) if "one" in step.finished]
    assert ends == [[*prompt, *reply]]
    lone.add("two", [*prompt, *reply, *tokens_of(2, 20)], 1, calls=(), session_id="job")
    (hits,) = [step.hit_tokens["two"] for step in run_until_idle(lone) if "two" in step.hit_tokens]
    return hits


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_turn_that_ends_in_flight_is_hit_as_if_it_had_not(tiny_model_path: str, family: str) -> None:
    """Wherever in a block the end is: the next step may have had its first token in a new block."""
    specs = FAMILIES[family]
    for length in (*range(8, 14), 40, 75):
        reply = [*tokens_of(7, length - 1), EOS if length % 2 else STOP_TOKEN]
        alone, ahead = (answer(make_async(tiny_model_path, specs, in_flight=count), reply) for count in (1, 2))
        assert alone == ahead
        if family != "state":
            assert ahead == (PROMPT + length - 1) // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_turn_that_ends_in_flight_is_booked_and_freed_once(
    tiny_model_path: str, family: str, late: bool, freed: list[tuple[FreeContext, int]]
) -> None:
    lone = make_async(tiny_model_path, FAMILIES[family])
    learn_that_tools_are_fast(lone)
    lone.scheduler.defer_block_free = late
    lone.add("other", tokens_of(9, 30), output_tokens=60, calls=())
    reply = [*tokens_of(7, 30), EOS]
    lone.add("mine", tokens_of(1, PROMPT), 200, calls=(SEARCH,), reply=reply, session_id="mine")
    while "mine" in lone.scheduler.requests:
        freed.clear()
        output = lone.step()
        lone.scheduler.check_integrity()
    assert output.scheduled["mine"][0] == 1, "its next step is not under way"
    assert bool(lone.scheduler.frees.count_held()) is late
    for _ in range(2):
        lone.step()
        lone.scheduler.check_integrity()
    (view,) = view_session(lone.scheduler.tracker, "mine")
    assert [(t.status, t.output_tokens, t.tools) for t in view.turns] == [("finished", 31, ("search",))]
    assert max(Counter(block for _, block in freed).values()) == 1
    job = lone.scheduler.tracker.runtime.jobs.get("mine")
    kept = [context for context, _ in freed if not context.superseded]
    (pin,) = lone.scheduler.tracker.pins
    assert {(context.job, context.pin) for context in kept} == {(job.number, pin.number)}
    assert {context.finish_class for context in kept}.isdisjoint((UNKNOWN, PREEMPTED, OVER))
    assert lone.scheduler.tracker.pins.blocks_left(pin) == len(kept)


@dataclass
class OwnEnds(Life):
    """Most replies end at EOS or a stop token."""

    def _ask(self, job: str, turn: int, prompt: list[int]) -> None:
        name = f"{job} turn {turn}"
        calls = self.rng.choice(((SEARCH,), ()))
        ends = self.rng.choice((EOS, EOS, STOP_TOKEN, None))
        reply = [] if ends is None else [*tokens_of(self.jobs + turn, self.rng.randint(0, 40)), ends]
        self.running[name] = (job, turn)
        self.lone.add(name, prompt, 50, calls=calls, reply=reply, session_id=job)


@pytest.mark.parametrize("family", list(FAMILIES))
@settings(max_examples=pick_size(1, 20))
@given(seed=st.integers(0, 1_000_000), blocks=st.integers(34, 90), late=st.booleans())
def test_no_block_is_lost_where_replies_end_in_flight(
    tiny_model_path: str, family: str, seed: int, blocks: int, late: bool
) -> None:
    specs = FAMILIES[family]
    lone = make_async(tiny_model_path, specs, blocks * len(specs))
    lone.scheduler.defer_block_free = late
    life = OwnEnds(lone, random.Random(seed))
    for _ in range(pick_size(80, 400)):
        life.step()
    life.drain()
    for _ in range(2):
        lone.step()
    assert lone.scheduler.reset_prefix_cache()
    assert lone.pool.get_num_free_blocks() == blocks * len(specs) - 1
    assert lone.scheduler.checkpoints is None or not lone.scheduler.checkpoints.count_held()


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_turn_stopped_at_a_string_in_flight_is_hit_whole(tiny_model_path: str, family: str) -> None:
    """The server sees the string when the core's next step is under way, whose token nobody asks for."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path)
    lone = make_async(tiny_model_path, FAMILIES[family])
    prompt, reply = tokens_of(1, PROMPT), tokenizer.encode("Thought: I should look.\nObservation: it is so")
    lone.add("one", prompt, 200, calls=(SEARCH,), reply=reply, stop="Observation:", session_id="job")
    while "Observation:" not in tokenizer.decode(lone.scheduler.requests["one"].output_token_ids):
        lone.step()
    said = list(lone.scheduler.requests["one"].output_token_ids)
    lone.abort("one")
    run_until_idle(lone)
    (view,) = view_session(lone.scheduler.tracker, "job")
    assert [(t.status, t.output_tokens, t.tools) for t in view.turns] == [("finished", len(said), ("search",))]
    lone.add("two", [*prompt, *said, *tokens_of(2, 20)], 1, calls=(), session_id="job")
    (hits,) = [step.hit_tokens["two"] for step in run_until_idle(lone) if "two" in step.hit_tokens]
    assert hits == (PROMPT + len(said) - 1) // BLOCK_SIZE * BLOCK_SIZE
