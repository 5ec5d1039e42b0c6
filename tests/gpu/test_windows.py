"""gpt-oss on a GPU: sliding windows and full attention in turns, attention sinks, experts; gaps are filled in both."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
from crowd import WindowedCrowd
from family_models import make_model
from live_engine import BLOCK, LiveEngine, make_prompt
from served import MARGIN, assert_near, find_distance

pytestmark = pytest.mark.engine

# As it is served: CUDA graphs, and steps scheduled while others run.
SERVED: dict[str, Any] = {
    "dtype": "bfloat16",
    "enforce_eager": False,
    "skip_tokenizer_init": True,
    "max_model_len": 26 * BLOCK,
    "max_num_batched_tokens": 4 * BLOCK,
}
# Of the cold engine, which is made first. Experts' kernels use scratch memory of the process. The next engine replaces
# it, and CUDA graphs of the first would go on writing to where it was.
WITHOUT_GRAPHS: dict[str, Any] = {"compilation_config": {"cudagraph_mode": "NONE"}}
GEOMETRY: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "head_dim": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
    "dtype": "bfloat16",
}
# Of the cache: about a third of what the jobs below leave in it.
BLOCKS = 60
PROMPT = make_prompt(seed=1, tokens=18 * BLOCK + 7)


class Pair(NamedTuple):
    engine: LiveEngine
    cold: LiveEngine
    tolerance: float
    """The most that a token's logprob may differ: what stock vLLM's own batches make, times the margin."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = make_model("gpt-oss", tmp_path_factory.mktemp("gpt-oss"), **GEOMETRY)
    options = SERVED | WITHOUT_GRAPHS
    cold = LiveEngine(path, scheduler=None, enable_prefix_caching=False, num_gpu_blocks_override=200, **options)
    prompts = [make_prompt(seed, tokens=100 + 40 * seed) for seed in range(12)]
    alone = [cold.ask(prompt, 24) for prompt in prompts]
    names = [cold.add(prompt, 24) for prompt in prompts]
    cold.finish()
    own = max(find_distance(cold.reply(name), reply) for name, reply in zip(names, alone, strict=True))
    return Pair(LiveEngine(path, num_gpu_blocks_override=BLOCKS, **SERVED), cold, MARGIN * max(own, 0.005))


@pytest.mark.parametrize("gap", [[0], [5], [3, 4, 11], list(range(14))], ids=["first", "one", "two", "long"])
def test_reply_behind_gaps_before_a_window(gap: list[int], pair: Pair) -> None:
    engine, cold, tolerance = pair
    engine.use()
    expected = cold.ask(PROMPT, 16)
    assert_near([(engine.ask(PROMPT, 16), expected)], tolerance)
    engine.forget(PROMPT, gap, group=engine.scheduler.gap_filler.finder.rule.full[0])
    reply = engine.ask(PROMPT, 16)
    assert engine.fill_tokens >= len(gap) * BLOCK
    assert reply.cached >= (17 - max(gap)) * BLOCK
    assert_near([(reply, expected)], tolerance)


@pytest.mark.parametrize("policy", [{"policy": "asymcache"}, {"policy": "agentcache", "look_s": 0.01}], ids=str)
def test_replies_of_jobs_with_windows(policy: dict[str, Any], pair: Pair) -> None:
    engine, cold, tolerance = pair
    engine.use(**policy)
    crowd = WindowedCrowd(engine, random.Random(4))
    crowd.run(jobs=6, turns=4)
    assert sum(engine.scheduler.segment_stats.segments.values()) >= 2
    names = [cold.add(prompt, length) for prompt, length, _ in crowd.turns]
    cold.finish()
    assert_near(((reply, cold.reply(name)) for name, (*_, reply) in zip(names, crowd.turns, strict=True)), tolerance)
