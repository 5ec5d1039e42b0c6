"""Models on two ranks, by tensor or pipeline parallelism: replies equal those of a cold engine on one rank.

With tensor parallelism sums are in another order than on one rank. In float32 that moves no greedy token, and
log-probabilities by some 1e-5, less than `assert_same` allows for: one rank can tell what is right.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from background_server import engine_processes
from crowd import BLOCKS, Crowd, assert_equal_to_cold, assert_eventful, note_preemptions
from live_engine import BLOCK, LiveEngine, assert_same, make_prompt
from loaded_once import get_context
from vllm import envs
from vllm.triton_utils import HAS_TRITON

pytestmark = pytest.mark.engine

# 20 full blocks and a tail.
PROMPT = make_prompt(seed=1, tokens=20 * BLOCK + 7)
RANKS = {"tensor": {"tensor_parallel_size": 2}, "pipeline": {"pipeline_parallel_size": 2}}


@pytest.fixture(
    scope="module",
    params=[(ranks, is_v2) for is_v2 in (False, True) for ranks in RANKS],
    ids=lambda param: f"{param[0]}, {'V2' if param[1] else 'V1'}",
)
def engine(
    request: pytest.FixtureRequest,
    tiny_model_path: str,
    forkserver: None,  # noqa: ARG001 (of the ranks of V1, and gone later)
) -> Iterator[LiveEngine]:
    """The scheduler is in this process, the ranks are in two others, gone at the end."""
    ranks, is_v2 = request.param
    before = engine_processes()
    engine = start(tiny_model_path, is_v2=is_v2, **RANKS[ranks])
    assert engine.vllm_config.use_v2_model_runner == is_v2
    executor = engine.core.model_executor
    # Where V1's later stages receive is made by vLLM's first dummy batch, which it leaves out on CPUs if nothing is
    # compiled: its own scheduler as well ends there with "assert self.intermediate_tensors is not None".
    executor.execute_dummy_batch()
    yield engine
    # Not the whole engine: that would take this process's communication groups from the other engines in it.
    executor.shutdown()
    _, alive = psutil.wait_procs(engine_processes() - before, timeout=15)
    assert alive == []


def start(model: str, *, is_v2: bool, **options: Any) -> LiveEngine:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(is_v2)))
        if not is_v2:
            environment.setattr(multiprocessing, "get_context", get_context)
        # Another engine in this process has vLLM keep what was set before.
        envs.disable_envs_cache()
        if is_v2 and not HAS_TRITON:
            # vLLM 0.32 refuses it with the engine's arguments, 0.33 when its worker starts.
            pytest.skip("vLLM's Model Runner V2 requires Triton")
        return LiveEngine(model, num_gpu_blocks_override=BLOCKS, **options)


def note_overlaps(engine: LiveEngine, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each batch that ends while another is on its way: whether one of the two fills a gap."""
    scheduler, update = engine.scheduler, engine.scheduler.update_from_output
    overlaps: list[bool] = []

    def note(ending: Any, *args: Any) -> Any:
        for _, later, _ in engine.core.batch_queue or ():
            if ending.num_scheduled_tokens and later.num_scheduled_tokens:
                names = ending.num_scheduled_tokens.keys() | later.num_scheduled_tokens.keys()
                overlaps.append(any(map(scheduler.is_fill_request, names)))
        return update(ending, *args)

    monkeypatch.setattr(scheduler, "update_from_output", note)
    return overlaps


def test_replies_of_jobs_on_two_ranks_equal_cold_ones(
    engine: LiveEngine, cold: LiveEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.use(policy="agentcache", look_s=0.01)
    crowd = Crowd(engine, random.Random(4))
    note_preemptions(engine, crowd.preempted, monkeypatch)
    overlaps = note_overlaps(engine, monkeypatch)
    crowd.run(jobs=6, turns=4)
    assert_equal_to_cold(crowd, cold)
    assert_eventful(crowd)
    assert engine.scheduler.block_queue.evictions["capacity"].blocks > 0
    # A pipeline's stages had a batch each, also while gaps were filled.
    is_pipeline = engine.vllm_config.parallel_config.pipeline_parallel_size > 1
    assert set(overlaps) == ({True, False} if is_pipeline else set())
    assert not engine.scheduler.gap_filler.rows
    assert engine.pool.get_num_free_blocks() == BLOCKS - 1


def test_replies_behind_gaps_on_two_ranks(engine: LiveEngine, cold: LiveEngine) -> None:
    gap = [2, 3, 9, 18]
    engine.use(policy="agentcache")
    expected = cold.ask(PROMPT, 16)
    assert_same(engine.ask(PROMPT, 16), expected)
    engine.forget(PROMPT, gap)
    reply = engine.ask(PROMPT, 16)
    assert_same(reply, expected)
    assert engine.fill_tokens == len(gap) * BLOCK
    assert reply.cached == (20 - len(gap)) * BLOCK


def test_a_wrong_block_on_two_ranks_is_seen(engine: LiveEngine, cold: LiveEngine) -> None:
    engine.use(policy="agentcache")
    expected = cold.ask(PROMPT, 16)
    assert_same(engine.ask(PROMPT, 16), expected)
    engine.replace_block(PROMPT, 5, 10)
    with pytest.raises(AssertionError):
        assert_same(engine.ask(PROMPT, 16), expected)
