"""The CPU cache of vLLM's CPU engine on two ranks: what tests/gpu/test_tier_parallel.py checks of more blocks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loaded_once import get_context
from parallel_checks import each_check
from sizes import IS_THOROUGH
from two_ranks import LAYOUTS, Sizes, TwoRanks, make_model, start_two_ranks

# Four engines' workers take a minute of CPU to start.
pytestmark = [pytest.mark.engine, pytest.mark.skipif(not IS_THOROUGH, reason="make test-thorough runs it")]

SIZES = Sizes(on_gpu=60, on_host=400, jobs=12, prompt=500, step=1024, least=100)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=LAYOUTS)
def ranks(
    request: pytest.FixtureRequest,
    model: str,
    forkserver: None,  # noqa: ARG001 (of the ranks)
) -> Iterator[TwoRanks]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        patch.setattr(multiprocessing, "get_context", get_context)
        with start_two_ranks(model, request.param, SIZES, dtype="float32") as ranks:
            for engine in (ranks.engine, ranks.cold):
                # Where later stages receive is made by vLLM's first dummy batch, which it leaves out on CPUs.
                engine.core.model_executor.execute_dummy_batch()
            yield ranks


@each_check
def test_the_cpu_cache_on_two_ranks(check: Callable[[TwoRanks, Path], None], ranks: TwoRanks, tmp_path: Path) -> None:
    check(ranks, tmp_path)
