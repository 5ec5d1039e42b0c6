"""The CPU cache on two GPUs, by tensor parallelism and by pipeline stages of unequal length.

Each worker keeps its share of every block. Each prompt's first turn is computed in one step of its own, so that the
kernels of a cold engine, given the same, compute the same bytes: none may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from parallel_checks import each_check
from two_ranks import LAYOUTS, Sizes, TwoRanks, make_model, start_two_ranks

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

SIZES = Sizes(on_gpu=1200, on_host=20_000, jobs=88, prompt=6000, step=8192, least=10_000)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=LAYOUTS)
def ranks(request: pytest.FixtureRequest, model: str) -> Iterator[TwoRanks]:
    with pytest.MonkeyPatch.context() as patch:
        # Tests before may have used the GPU in this process.
        patch.setenv("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")
        with start_two_ranks(model, request.param, SIZES, dtype="bfloat16", gpu_memory_utilization=0.1) as ranks:
            ranks.measure_tolerance()
            yield ranks


@each_check
def test_the_cpu_cache_on_two_gpus(check: Callable[[TwoRanks, Path], None], ranks: TwoRanks, tmp_path: Path) -> None:
    check(ranks, tmp_path)
