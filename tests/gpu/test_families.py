"""Families of models on a GPU: replies of jobs whose blocks are reused and lost are those of an engine without a cache.

A family that stock vLLM itself does not start here is skipped, with vLLM's reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from engine_pair import Pair, Starting, start_pair
from family_checks import DRAFTS, FEW_TOKENS, Family, check_before_reuse, check_jobs, check_served, check_wrong_block
from gpu_models import make_gpu_model

pytestmark = pytest.mark.engine

FAMILIES = {
    "qwen3-moe": Family("qwen3-moe", 37),
    "qwen3-moe, fp8": Family("qwen3-moe", 37, options={"kv_cache_dtype": "fp8"}),
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
    "llama, ngram": Family("llama", 37, options={"speculative_config": DRAFTS}, sampling=FEW_TOKENS),
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
            pairs[name] = stack.enter_context(start_pair(path, sampling=family.sampling, **family.engine_options))
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
    check_served(pair)


@of_each_family
def test_engines_agree_before_anything_is_cached(family: str, pair: Pair) -> None:
    check_before_reuse(FAMILIES[family], pair)


@of_each_family
def test_replies_of_jobs_of_families(family: str, pair: Pair) -> None:
    check_jobs(FAMILIES[family], pair)


@of_each_family
def test_one_wrong_block_of_a_family_is_seen(pair: Pair) -> None:
    check_wrong_block(pair)
