"""What the CPU cache holds under a block's hash is what a cold engine computes for that hash, on a GPU.

Prefills of 8,192 tokens write while blocks are copied, several tenants take a small GPU cache from each other, and the
host has room for all. A cold engine's batches are others, so its bytes differ by rounding: by `ROUNDING` of a block's
norm at most, where another's block differs by more than its norm.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from live_engine import LiveEngine, Reply, make_prompt
from pushed_out import SEARCH, settle
from served import find_distance
from tier_knobs import KNOBS
from too_early import begin_unchecked
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown, get_kv_transfer_group

from agentcache.engine.cpu_cache.options import make_transfer_config
from agentcache.engine.cpu_cache.tier import Tier
from agentcache.models.catalog import resolve_model

pytestmark = pytest.mark.engine

logger = logging.getLogger(__name__)
ROUNDING = 0.1
# Logprobs of replies, likewise.
DISTANCE = 0.1


class Sizes(NamedTuple):
    """Of a run, in blocks and tokens."""

    block: int = 16
    on_gpu: int = 2500
    on_host: int = 16000
    block_bytes: int = 16 * 131072
    jobs: int = 32
    prompt: int = 6000
    step: int = 8192
    least: int = 5_000


@contextmanager
def start_engine(model: str, sizes: Sizes, **options: Any) -> Iterator[LiveEngine]:
    engine = LiveEngine(
        model,
        policy="agentcache",
        knobs=KNOBS,
        block_size=sizes.block,
        max_model_len=sizes.step,
        max_num_batched_tokens=sizes.step,
        max_num_seqs=16,
        num_gpu_blocks_override=sizes.on_gpu,
        kv_cache_memory_bytes=sizes.on_gpu * sizes.block_bytes + 2**20,
        kv_transfer_config=make_transfer_config(sizes.on_host * sizes.block_bytes, steered=True, lazy=False),
        **options,
    )
    engine.scheduler.clock = itertools.count(1.0, 0.01).__next__
    try:
        yield engine
    finally:
        ensure_kv_transfer_shutdown()


def copier() -> Any:
    connector: Any = get_kv_transfer_group()
    return connector.copier


class Job(NamedTuple):
    prompt: list[int]
    salt: str


def make_jobs(sizes: Sizes) -> list[Job]:
    return [Job(make_prompt(number, sizes.prompt + number), f"tenant-{number % 8}") for number in range(sizes.jobs)]


def run_turns(engine: LiveEngine, jobs: list[Job]) -> list[Reply]:
    """Two turns of each job; the replies of the second, which is fetched."""
    for _ in range(2):
        names = [
            engine.add(prompt, 4, salt=salt, session=f"job-{number}", calls=[SEARCH], logprobs=5)
            for number, (prompt, salt) in enumerate(jobs)
        ]
        engine.finish()
        replies = [engine.reply(name) for name in names]
        settle(engine)
    return replies


class Copied(NamedTuple):
    """Blocks of one job that the host has, and their bytes in some of the layers."""

    keys: list[Any]
    layers: dict[str, torch.Tensor]


def read_host(engine: LiveEngine, jobs: list[Job]) -> list[Copied]:
    host, caches = engine.scheduler.tier.host, copier().on_host
    names = list(caches)[:: max(1, len(caches) // 4)]
    read = []
    for prompt, salt in jobs:
        keys = [key for key in engine.block_keys(prompt, salt=salt) if host.map.holds(key)]
        ids = [block.block_id for block in host.map.find_blocks(keys)]
        read.append(Copied(keys, {name: caches[name][ids].clone() for name in names}))
    return read


def ask_cold(engine: LiveEngine, job: Job, copied: Copied) -> tuple[Reply, list[float]]:
    """The reply of an engine whose caches are empty, and how far each block of the host's was from its own."""
    settle(engine)
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    reply = engine.ask(job.prompt, 4, salt=job.salt, calls=[SEARCH], logprobs=5)
    assert reply.cached == 0
    cache = engine.pool.cached_block_hash_to_block
    # A prompt of whole blocks has its last one computed twice.
    ids = [block.block_id for block in cache.find_blocks(copied.keys)]
    worst = torch.zeros(len(ids))
    for name, stored in copied.layers.items():
        computed = copier().on_gpu[name][ids].cpu().view(torch.bfloat16).float()
        other = stored.view(torch.bfloat16).float()
        worst = torch.maximum(worst, (other - computed).norm(dim=1) / computed.norm(dim=1))
    return reply, worst.tolist()


def find_distances(model: str, sizes: Sizes, **options: Any) -> tuple[list[float], list[float]]:
    """How far blocks of the CPU cache, and replies, are from a cold engine's."""
    jobs = make_jobs(sizes)
    with start_engine(model, sizes, **options) as engine:
        replies = run_turns(engine, jobs)
        tier = engine.scheduler.tier
        assert tier.counts.fetched > sizes.least / 4
        copied = read_host(engine, jobs)
        cold = [ask_cold(engine, job, each) for job, each in zip(jobs, copied, strict=True)]
    blocks = [distance for _, distances in cold for distance in distances]
    apart = [find_distance(reply, expected) for reply, (expected, _) in zip(replies, cold, strict=True)]
    wrong = sum(distance > ROUNDING for distance in blocks)
    logger.info(
        f"{len(blocks)} blocks, {wrong} wrong, largest of the others {max(d for d in blocks if d <= ROUNDING):.4f}"
    )
    logger.info(f"stored {tier.counts}, fetched {tier.counts.fetched}, replies apart {max(apart):.4f}")
    return blocks, apart


# The engine of the test before may still have its weights on the GPU.
OPTIONS: dict[str, Any] = {"dtype": "bfloat16", "load_format": "dummy", "gpu_memory_utilization": 0.5}


@pytest.fixture(scope="module")
def large_model() -> str:
    return resolve_model("shape:llama-3.1-8b").path


def test_every_stored_block_is_what_its_hash_says(large_model: str) -> None:
    blocks, apart = find_distances(large_model, Sizes(), **OPTIONS)
    assert len(blocks) >= Sizes().least
    assert max(blocks) <= ROUNDING
    assert max(apart) <= DISTANCE


def test_blocks_that_are_stored_too_early_are_seen(large_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a step's own blocks are stored beside it, and nothing refuses that."""
    monkeypatch.setattr(Tier, "begin_copies", begin_unchecked)
    blocks, _ = find_distances(large_model, Sizes(), **OPTIONS)
    assert max(blocks) > 5 * ROUNDING
