"""vLLM's CPU engine over two caches that policy `agentcache` steers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from crowd import BLOCKS
from live_engine import BLOCK, LiveEngine
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

from agentcache.engine.cpu_cache.options import make_transfer_config

# Of the tiny model, in float32: two layers of two heads of 32, keys and values.
BLOCK_BYTES = 2 * 2 * 2 * 32 * 4 * BLOCK
# Everything is worth a fetch.
KNOBS = {"tier": {"enabled": True, "link_gb_s": 1e6}, "tuning": {"row_s": 0.0, "link_latency_s": 0.0}}


E = TypeVar("E", bound=LiveEngine)


@contextmanager
def start_tiered(model_path: str, host_blocks: int) -> Iterator[LiveEngine]:
    """As `start_tiered_as` does, by an engine without anything more."""
    with start_tiered_as(LiveEngine, model_path, host_blocks) as engine:
        yield engine


@contextmanager
def start_tiered_as(kind: type[E], model_path: str, host_blocks: int) -> Iterator[E]:
    """vLLM has one worker's connector a process, so no other engine may run meanwhile."""
    engine = kind(
        model_path,
        policy="agentcache",
        knobs=KNOBS,
        kv_transfer_config=make_transfer_config(host_blocks * BLOCK_BYTES, steered=True, lazy=False),
        num_gpu_blocks_override=BLOCKS,
    )
    # Between two turns of a job lie some hundred looks at the clock.
    engine.scheduler.clock = itertools.count(1.0, 0.01).__next__
    try:
        yield engine
    finally:
        ensure_kv_transfer_shutdown()
