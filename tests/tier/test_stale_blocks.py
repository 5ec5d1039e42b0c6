"""A store never reads a block that its own step writes: the hash stands first, and the copy may be made at once."""

from __future__ import annotations

from unittest import mock

import pytest
from lone_scheduler import BLOCK_SIZE
from tiered_jobs import ask, make_tokens
from tiered_scheduler import TieredScheduler, make_tiered
from too_early import begin_unchecked, choose_too_early

from agentcache.engine.cpu_cache.storing import Storing
from agentcache.engine.cpu_cache.tier import Tier
from agentcache.engine.vllm.copiers import CopyOrders
from agentcache.engine.vllm.types import SchedulerOutput
from agentcache.errors import IntegrityError


def run_in_turn(lone: TieredScheduler) -> None:
    """Five tenants' jobs of 26 blocks and more take the GPU's 33 blocks from each other; the host has room for all."""
    prompts = [make_tokens(job, (26 + job) * BLOCK_SIZE) for job in range(5)]
    for turn in range(2):
        for job, prompt in enumerate(prompts):
            ask(lone, f"job-{job}/{turn}", prompt + make_tokens(turn, 8))
        lone.run_until_idle()


def make_roomy(model_path: str, in_flight: int) -> TieredScheduler:
    return make_tiered(model_path, blocks=34, host_blocks=400, in_flight=in_flight, seed=in_flight)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_stored_blocks_are_what_their_hashes_say(tiny_model_path: str, in_flight: int) -> None:
    lone = make_roomy(tiny_model_path, in_flight)
    run_in_turn(lone)
    assert lone.scheduler.tier.counts.stored > 100
    assert lone.scheduler.tier.counts.fetched > 100


def test_a_store_of_what_its_step_computes_is_refused(tiny_model_path: str) -> None:
    lone = make_roomy(tiny_model_path, 1)
    steps: list[SchedulerOutput] = []
    begin = lone.scheduler.tier.begin_copies

    def begin_copies(step: SchedulerOutput) -> CopyOrders:
        steps.append(step)
        store = choose_too_early(lone.scheduler.tier, step)
        with mock.patch.object(Storing, "begin", return_value=store):
            return begin(step)

    with (
        mock.patch.object(lone.scheduler.tier, "begin_copies", begin_copies),
        pytest.raises(IntegrityError, match=r"^a block is to be stored beside the step that computes it$"),
    ):
        run_in_turn(lone)
    assert len(steps) == 1


def test_the_worker_of_these_tests_shows_wrong_copies(tiny_model_path: str) -> None:
    """It copies as early as a GPU's worker may, so what is not refused is seen."""
    lone = make_roomy(tiny_model_path, 1)
    with (
        mock.patch.object(Tier, "begin_copies", begin_unchecked),
        pytest.raises(AssertionError, match="holds another's KV"),
    ):
        run_in_turn(lone)
