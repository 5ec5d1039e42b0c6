"""What test_families.py checks, of all 80 layers of Llama-3.1-70B over four GPUs; integrity is checked at each step.

Weights are random (random_weights.py). The engine under test and the cold one are on the same four GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from engine_pair import Pair, start_pair
from family_checks import Family, check_before_reuse, check_jobs, check_served, check_wrong_block
from published_geometries import find_options, write_config

from agentcache.models.shapes import SHAPES

GPUS = 4
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(torch.cuda.device_count() < GPUS, reason=f"needs {GPUS} GPUs"),
]
FAMILY = Family(
    "llama-3.1-70b",
    37,
    options={
        "tensor_parallel_size": GPUS,
        "kv_cache_memory_bytes": 2**31,
        "worker_extension_cls": "random_weights.Registered",
    },
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    path = write_config(SHAPES[FAMILY.model], tmp_path_factory.mktemp(FAMILY.model))
    with start_pair(path, **find_options(FAMILY)) as starting:
        yield starting.wait()


def test_the_engine_on_four_gpus_is_as_served(pair: Pair) -> None:
    check_served(pair)


def test_engines_on_four_gpus_agree_before_reuse(pair: Pair) -> None:
    check_before_reuse(FAMILY, pair)


def test_replies_of_jobs_on_four_gpus(pair: Pair) -> None:
    check_jobs(FAMILY, pair)


def test_one_wrong_block_on_four_gpus_is_seen(pair: Pair) -> None:
    check_wrong_block(pair)
