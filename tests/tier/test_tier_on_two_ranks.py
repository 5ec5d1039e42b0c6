"""The CPU cache of vLLM's CPU engine on two ranks: what tests/gpu/test_tier_parallel.py checks of more blocks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest
from loaded_once import get_context
from parallel_checks import (
    check_blocks_and_replies,
    check_failed_fetches,
    check_failed_stores,
    check_flipped_bit,
    check_layout,
    check_replies_where_copies_fail,
    check_wrong_blocks,
)
from sizes import pick_size
from two_ranks import LAYOUTS, Sizes, TwoRanks, make_model, start_two_ranks

pytestmark = pytest.mark.engine

SIZES = Sizes(on_gpu=60, on_host=400, jobs=12, prompt=500, step=1024, least=100)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=list(LAYOUTS)[: pick_size(1, 2)])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ranks(
    layout: str,
    model: str,
    forkserver: None,  # noqa: ARG001 (of the ranks)
) -> Iterator[TwoRanks]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        patch.setattr(multiprocessing, "get_context", get_context)
        with start_two_ranks(model, layout, SIZES, dtype="float32") as ranks:
            for engine in (ranks.engine, ranks.cold):
                # Where later stages receive is made by vLLM's first dummy batch, which it leaves out on CPUs.
                engine._core.model_executor.execute_dummy_batch()
            yield ranks


def test_ranks_have_the_layers_of_their_layout(layout: str, ranks: TwoRanks) -> None:
    check_layout(ranks, layout)


def test_every_stored_block_of_two_ranks(ranks: TwoRanks, tmp_path: Path) -> None:
    check_blocks_and_replies(ranks, tmp_path)


def test_stores_that_fail_at_the_second_rank(ranks: TwoRanks) -> None:
    check_failed_stores(ranks)


def test_fetches_that_fail_at_the_second_rank(ranks: TwoRanks) -> None:
    check_failed_fetches(ranks)


def test_replies_where_copies_of_one_rank_fail(ranks: TwoRanks) -> None:
    check_replies_where_copies_fail(ranks)


def test_one_bit_flipped_at_the_second_rank_is_seen(ranks: TwoRanks, tmp_path: Path) -> None:
    check_flipped_bit(ranks, tmp_path)


def test_wrong_blocks_at_the_second_rank_are_seen(ranks: TwoRanks) -> None:
    check_wrong_blocks(ranks)
