"""Families of models on a GPU: replies of jobs whose blocks are reused and lost are those of an engine without a cache.

A family that stock vLLM itself does not start here is skipped, with vLLM's reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from asked_alone import Ran, Sampling, ask_anew, ask_with_wrong_block, describe, run_jobs
from engine_pair import Pair, Starting, start_pair
from gpu_models import make_gpu_model
from live_engine import make_prompt
from served import find_distance

pytestmark = pytest.mark.engine

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@dataclass(frozen=True, slots=True)
class Family:
    """`blocks` is a third to a half of what the jobs leave."""

    model: str
    blocks: int
    kind: str = "full"
    options: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=dict)

    @property
    def fills_gaps(self) -> bool:
        return self.kind != "states"


FAMILIES = {
    "qwen3-moe": Family("qwen3-moe", 37),
    # FlashMLA has no other block.
    "deepseek-v2": Family("deepseek-v2", 19, options={"block_size": 64}),
    # vLLM makes blocks as large as a state; a request holds some states beside its blocks. It prefers FlashInfer's
    # kernel, which need not be there.
    "qwen3-next": Family(
        "qwen3-next",
        40,
        "states",
        {"max_num_batched_tokens": 256, "gdn_prefill_backend": "triton"},
    ),
    # A reply of so few tokens repeats itself, so that some drafts are right and some are not.
    "llama, ngram": Family(
        "llama", 37, options={"speculative_config": DRAFTS}, sampling={"allowed_token_ids": [11, 222, 3333]}
    ),
}


@pytest.fixture(scope="module")
def starting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Starting]]:
    """Those of all families that are tested start at once, as an engine's start is mostly one core's work."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {name for each in params if (name := each.get("family")) in FAMILIES}
    with ExitStack() as stack:
        pairs = {}
        for name in sorted(wanted):
            family = FAMILIES[name]
            path = make_gpu_model(family.model, tmp_path_factory.mktemp(family.model))
            options = {"max_num_batched_tokens": 128, "num_gpu_blocks_override": family.blocks, **family.options}
            pairs[name] = stack.enter_context(start_pair(path, **options))
        yield pairs


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(family: str, starting: dict[str, Starting]) -> Pair:
    return starting[family].wait()


of_each_family = pytest.mark.parametrize("family", FAMILIES, indirect=True, scope="module")


@of_each_family
def test_the_engine_of_a_family_is_as_it_is_served(pair: Pair) -> None:
    served = pair.engine.call(describe)
    assert served.has_graphs
    assert served.caches_prefixes
    # vLLM decides, by the kind of drafts.
    assert served.schedules_ahead == pair.cold.call(describe).schedules_ahead


@of_each_family
def test_engines_agree_before_anything_is_cached(pair: Pair) -> None:
    """If they do not, what the next test finds is not about reuse."""
    requests = [(make_prompt(seed, tokens=200 + 100 * (seed % 4)), 16) for seed in range(20, 28)]
    replies = pair.engine.call(ask_anew, requests)
    assert [reply.cached for reply in replies] == [0] * len(requests)
    pair.assert_near_cold([(*request, reply) for request, reply in zip(requests, replies, strict=True)])


@of_each_family
def test_replies_of_jobs_of_families(family: str, pair: Pair) -> None:
    sampling = FAMILIES[family].sampling
    ran = pair.engine.call(run_jobs, FAMILIES[family].kind, sampling=sampling)
    assert_eventful(FAMILIES[family], ran)
    pair.assert_near_cold(ran.turns, sampling)


def assert_eventful(family: Family, ran: Ran) -> None:
    """Blocks were hit, filled and lost: replies must be the same either way."""
    assert len(ran.turns) == 24
    assert ran.cached > 0
    assert ran.evicted > 0
    assert ran.preempted > 0
    assert ran.resets > 0
    assert 0.25 < ran.share < 0.55
    assert (ran.accepted > 0) == ("speculative_config" in family.options)
    if family.fills_gaps:
        assert ran.fill_tokens > 100
        assert ran.segments > 2


@of_each_family
def test_one_wrong_block_of_a_family_is_seen(pair: Pair) -> None:
    wronged = pair.engine.call(ask_with_wrong_block, group=0)
    pair.assert_near_cold([(wronged.prompt, 16, wronged.first), (wronged.prompt, 16, wronged.again)])
    assert wronged.again.cached == wronged.wrong.cached > 0
    assert find_distance(wronged.wrong, wronged.again) > pair.tolerance
