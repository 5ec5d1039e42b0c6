"""An engine of two ranks over two caches, the stock one that it is compared with, and what must hold of both.

Both engines have the same layout, and each prompt is at first computed in one step of its own: kernels that repeat
themselves give each worker's share of a block the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from at_workers import Difference, call_workers, compare_gpu_blocks, save_host_blocks
from background_server import engine_processes
from engine_pair import LEAST, MOST
from gpu_models import COMMON
from live_engine import BLOCK, LiveEngine, Reply, make_prompt
from pushed_out import SEARCH, settle
from served import MARGIN, assert_near, find_distance
from tiered_engine import KNOBS
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import envs
from vllm.config import KVTransferConfig

from agentcache.engine.cpu_cache.options import make_transfer_config

LAYERS = 5
# With more layers at the first stage: later ones have room for as many blocks at least.
LAYOUTS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "tensor": ({"tensor_parallel_size": 2}, [5, 5]),
    "pipeline": ({"pipeline_parallel_size": 2}, [3, 2]),
}
# Of jobs, to measure a tolerance by; and the number of the first, which no other job has.
MEASURED, MEASURED_FIRST = 24, 30_000


class Sizes(NamedTuple):
    """Of a run, in blocks and tokens; `least` is how many blocks of the CPU cache are compared."""

    on_gpu: int
    on_host: int
    jobs: int
    prompt: int
    step: int
    least: int


class Job(NamedTuple):
    prompt: list[int]
    salt: str


def make_model(folder: Path) -> str:
    """Make a Llama of five layers with random weights, whose replies never end early."""
    settings = COMMON | {"num_hidden_layers": LAYERS, "max_position_embeddings": 8192, "eos_token_id": None}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**settings)).to(torch.bfloat16).save_pretrained(folder)
    return str(folder)


def count_block_bytes(dtype: str) -> int:
    """Count the bytes of a block in all layers, of keys and values."""
    width = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    return 2 * LAYERS * int(COMMON["num_key_value_heads"]) * int(COMMON["head_dim"]) * BLOCK * width


def make_jobs(sizes: Sizes, first: int = 0) -> list[Job]:
    """The length of a prompt differs from job to job; tenants are apart."""
    numbers = range(first, first + sizes.jobs)
    return [Job(make_prompt(number, sizes.prompt + number % 29), f"tenant-{number % 8}") for number in numbers]


class TwoRanks:
    """The engine under test, and the stock one."""

    def __init__(self, engine: LiveEngine, cold: LiveEngine, layout: str, sizes: Sizes) -> None:
        self.engine = engine
        self.cold = cold
        self.layout = layout
        self.sizes = sizes
        self.tolerance = 2e-3
        """The most by which logprobs of their replies may differ: in float32, that."""

    def measure_tolerance(self) -> None:
        """Allow for what stock vLLM's replies over its own prefix cache differ from its cold ones, times the margin."""
        jobs = make_jobs(self.sizes._replace(jobs=MEASURED), first=MEASURED_FIRST)
        pairs = [(self.ask_cold(job), ask(self.cold, job)) for job in jobs]
        assert all(warm.cached for _, warm in pairs)
        own = max(find_distance(*pair) for pair in pairs)
        assert own < MOST, "the kernels do not repeat themselves well enough for this test"
        self.tolerance = MARGIN * max(own, LEAST)

    @property
    def tier(self) -> Any:
        return self.engine.scheduler.tier

    def start_anew(self) -> None:
        """Forget all blocks, on the GPUs and the host."""
        settle(self.engine)
        assert self.engine.scheduler.reset_prefix_cache(reset_connector=True)

    def run_one_by_one(self, jobs: list[Job]) -> None:
        """Blocks are stored beside steps of other jobs, and behind every second job while the engine is idle."""
        for number, job in enumerate(jobs, start=1):
            ask(self.engine, job)
            if number % 2 == 0 or number == len(jobs):
                settle(self.engine)

    def run_together(self, jobs: list[Job]) -> list[Reply]:
        names = [self.engine.add(job.prompt, 4, **identify(job)) for job in jobs]
        self.engine.finish()
        settle(self.engine)
        return [self.engine.reply(name) for name in names]

    def find_host_blocks(self, job: Job) -> dict[int, int]:
        """Find which of the job's blocks the host has: by their place in the prompt, their ids there."""
        keys, held = self.engine.block_keys(job.prompt, salt=job.salt), self.tier.host.map
        return {n: held.find_blocks([key])[0].block_id for n, key in enumerate(keys) if held.holds(key)}

    def ask_cold(self, job: Job, tokens: int = 4) -> Reply:
        """The reply of a stock engine that has nothing cached; its GPUs keep the blocks until the next."""
        settle(self.cold)
        assert self.cold.reset()
        reply = ask(self.cold, job, tokens)
        assert reply.cached == 0
        return reply

    def compare(self, jobs: list[Job], folder: Path) -> tuple[list[list[Difference]], list[Reply]]:
        """Compare all that the host has of the jobs with what the cold engine computes, by rank; and its replies."""
        found = [self.find_host_blocks(job) for job in jobs]
        call_workers(self.engine, save_host_blocks, folder, [id_ for each in found for id_ in each.values()])
        differences: list[list[Difference]] = [[], []]
        replies = []
        for job, held in zip(jobs, found, strict=True):
            replies.append(self.ask_cold(job))
            keys, cache = self.cold.block_keys(job.prompt, salt=job.salt), self.cold.pool.cached_block_hash_to_block
            ids = [cache.get_one_block(keys[place]).block_id for place in held]
            by_rank = call_workers(self.cold, compare_gpu_blocks, folder, len(differences[0]), ids)
            for rank, each in enumerate(by_rank):
                differences[rank] += each
        return differences, replies

    def assert_near(self, replies: list[Reply], expected: list[Reply]) -> None:
        assert_near(zip(replies, expected, strict=True), self.tolerance)

    def assert_near_cold(self, jobs: list[Job], replies: list[Reply]) -> None:
        self.assert_near(replies, [self.ask_cold(job) for job in jobs])


def identify(job: Job) -> dict[str, Any]:
    """As a job's turn with a call, whose logprobs can be compared."""
    return {"salt": job.salt, "session": f"job-{job.prompt[:4]}", "calls": [SEARCH], "logprobs": 5}


def ask(engine: LiveEngine, job: Job, tokens: int = 4) -> Reply:
    return engine.ask(job.prompt, tokens, **identify(job))


@contextmanager
def start_two_ranks(model: str, layout: str, sizes: Sizes, **options: Any) -> Iterator[TwoRanks]:
    """Start both engines, each with its workers in two processes, which are gone at the end."""
    block_bytes = count_block_bytes(options["dtype"])
    options |= LAYOUTS[layout][0] | {
        "max_model_len": sizes.step,
        "max_num_batched_tokens": sizes.step,
        "num_gpu_blocks_override": sizes.on_gpu,
        "kv_cache_memory_bytes": sizes.on_gpu * block_bytes,
        "skip_tokenizer_init": True,
        "distributed_executor_backend": "mp",
    }
    # vLLM divides it among ranks, and a pipeline's first stage has more of a block than the others.
    ours = make_transfer_config(2 * sizes.on_host * block_bytes, steered=True, lazy=False)
    # Has the GPUs' blocks in the same places, and copies none.
    idle = KVTransferConfig(
        kv_connector="CopyingConnector",
        kv_connector_module_path="agentcache.engine.vllm.connector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": block_bytes},
    )
    before = engine_processes()
    started: list[LiveEngine] = []
    envs.disable_envs_cache()
    try:
        started.append(LiveEngine(model, policy="agentcache", knobs=KNOBS, kv_transfer_config=ours, **options))
        # A step or two later the engine looks again at what may be stored.
        started[0].scheduler.clock = itertools.count(1.0, 0.1).__next__
        started.append(LiveEngine(model, scheduler=None, kv_transfer_config=idle, **options))
        yield TwoRanks(*started, layout=layout, sizes=sizes)
    finally:
        for engine in started:
            # Not the whole engine: that would take this process's communication groups from others in it.
            engine.core.model_executor.shutdown()
        _, alive = psutil.wait_procs(engine_processes() - before, timeout=15)
        assert alive == []
