"""vLLM's own connector holds the blocks that it copies, and in no table does that stand."""

from __future__ import annotations

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config, make_scheduler
from tiered_jobs import PROMPT
from tiered_scheduler import make_connected

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.errors import IntegrityError


def test_blocks_that_vllms_connector_copies_are_held(tiny_model_path: str) -> None:
    config = make_config(tiny_model_path, SCHEDULER_CLASS, policy="vllm")
    lone = LoneScheduler(make_connected(config, blocks=40, host_blocks=200, steered=False))
    lone.add("mine", PROMPT, 1)
    while not lone.idle:
        lone.step()
    blocks = lone.scheduler.kv_cache_manager.block_pool.blocks
    held = [block for block in blocks if block.ref_cnt and not block.is_null]
    assert len(held) == len(PROMPT) // BLOCK_SIZE, "no worker says that they are copied"
    lone.scheduler.check_integrity()


def test_a_lost_reference_is_seen_beside_a_connector(tiny_model_path: str) -> None:
    config = make_config(tiny_model_path, SCHEDULER_CLASS, policy="vllm")
    lone = LoneScheduler(make_connected(config, blocks=40, host_blocks=200, steered=False))
    lone.add("mine", PROMPT, 3)
    lone.step()
    lone.scheduler.check_integrity()
    first = lone.scheduler.kv_cache_manager.get_blocks("mine").blocks[0][0]
    first.ref_cnt = 0
    with pytest.raises(IntegrityError, match=rf"another reference count .* \[{first.block_id}\]"):
        lone.scheduler.check_integrity()


@pytest.mark.parametrize("tiered", [False, True])
def test_where_none_but_ours_hold_one_too_many_is_seen(tiered: bool, tiny_model_path: str) -> None:
    config = make_config(tiny_model_path, SCHEDULER_CLASS, policy="agentcache")
    scheduler = make_connected(config, blocks=40, host_blocks=200) if tiered else make_scheduler(config, 40)
    lone = LoneScheduler(scheduler)
    assert (scheduler.tier is not None) == tiered
    lone.add("mine", PROMPT, 3)
    lone.step()
    scheduler.check_integrity()
    first = scheduler.kv_cache_manager.get_blocks("mine").blocks[0][0]
    first.ref_cnt += 1
    with pytest.raises(IntegrityError, match=rf"another reference count .* \[{first.block_id}\]"):
        scheduler.check_integrity()
