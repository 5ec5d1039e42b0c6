"""What our scheduler adds to vLLM's: milliseconds of `schedule()`, side by side, without a worker.

python benchmarks/scheduler_overhead.py [--json] [--requests N] [--tokens N] [--steps N] [--repeats N] [--profile]

Step: as many requests decode as wait; the waiting ones find no room, or are held back where the policy does that, all
of them at each step, or are admitted one after the other. Admission: one request by itself, until all of its prompt is
scheduled, with the same number of cached tokens as a prefix and
behind 1 and 3 gaps. Schedulers take turns at every step, so that a disturbance meets all of them.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import json
import pstats
import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    make_block_hash_with_group_id,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.models.catalog import resolve_model

BLOCK_TOKENS = 16
STEP_TOKENS = 8192
GAP_BLOCKS = 16
SCHEDULERS = ("vllm", "lru", "observe", "asymcache", "agentcache")
# Without adaptive chunking, so that all schedulers have the same work in each step.
KNOBS = {"gpu": "h200", "chunking": {"enabled": False}}
# How much of a waiting request's prompt is that of a running one, where it has gaps.
SHARED = 0.4

NO_ROOM = "waiting find no room"
GAPPED = "waiting with gaps, no room"
HELD_BACK = "waiting are held back"
ADMITTED = "waiting are admitted"
CASES = (NO_ROOM, GAPPED, HELD_BACK, ADMITTED)

Scheduler = Any


class Bench:
    """A scheduler with made-up tokens. `request_tokens` is the longest prompt, `blocks` the size of the cache."""

    def __init__(
        self, policy: str, blocks: int, request_tokens: int, seats: int, knobs: Mapping[str, Any] | None = None
    ) -> None:
        self.scheduler = make_scheduler(policy, blocks, request_tokens, seats, knobs)
        hash_function = get_hash_fn_by_name(self.scheduler.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, hash_function)
        self._numbers = itertools.count()

    def add(self, prompt: list[int], output_tokens: int) -> Request:
        params = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
        request = Request(f"request {next(self._numbers)}", prompt, params, None, block_hasher=self._hasher)
        self.scheduler.add_request(request)
        return request

    def step(self) -> float:
        """CPU seconds of `schedule()`, which waits for nothing; the step's tokens come back outside of them."""
        start_s = time.thread_time()
        output = self.scheduler.schedule()
        elapsed_s = time.thread_time() - start_s
        self.scheduler.update_from_output(output, self._sample(output))
        return elapsed_s

    def admit(self, request: Request) -> float:
        """Seconds of `schedule()` until all of the prompt is scheduled."""
        total_s = 0.0
        while request.num_computed_tokens < request.num_prompt_tokens:
            total_s += self.step()
        return total_s

    def end(self, request: Request) -> None:
        self.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
        self.step()

    def forget(self, request: Request, blocks: Iterable[int]) -> None:
        """The request's blocks with these indices are cached no longer."""
        pool = self.scheduler.kv_cache_manager.block_pool
        keys = [make_block_hash_with_group_id(request.block_hashes[index], 0) for index in blocks]
        found = [pool.cached_block_hash_to_block.get_one_block(key) for key in keys]
        pool.evict_blocks({block.block_id for block in found if block is not None})

    def take_all_but(self, blocks: int) -> None:
        """Leave this many free blocks."""
        pool = self.scheduler.kv_cache_manager.block_pool
        pool.get_new_blocks(pool.get_num_free_blocks() - blocks)

    def _sample(self, output: SchedulerOutput) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        prefills = [self.scheduler.requests[name].is_prefill_chunk for name in ids]
        return ModelRunnerOutput(
            ids, {name: row for row, name in enumerate(ids)}, [[] if prefill else [7] for prefill in prefills]
        )


def make_scheduler(
    policy: str, blocks: int, request_tokens: int, seats: int, knobs: Mapping[str, Any] | None = None
) -> Scheduler:
    """For an 8B model on an H200. Policy "vllm" is stock vLLM itself, unless there are `knobs`."""
    is_stock = policy == "vllm" and knobs is None
    config = EngineArgs(
        model=resolve_model("shape:llama-3.1-8b").path,
        load_format="dummy",
        block_size=BLOCK_TOKENS,
        max_model_len=2 * request_tokens,
        max_num_seqs=seats,
        max_num_batched_tokens=STEP_TOKENS,
        scheduler_cls=AsyncScheduler if is_stock else SCHEDULER_CLASS,
        additional_config={} if is_stock else {"agentcache": {"policy": policy, **KNOBS, **(knobs or {})}},
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
    return config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        hash_block_size=BLOCK_TOKENS,
    )


def make_prompts(count: int, tokens: int) -> list[list[int]]:
    chance = random.Random(0)
    return [chance.choices(range(100_000), k=tokens) for _ in range(count)]


def fill_bench(policy: str, prompts: Sequence[list[int]], steps: int, case: str) -> Bench:
    """Half of the requests decode, the others wait."""
    half, tokens = len(prompts) // 2, len(prompts[0])
    # The first decode while the last are computed.
    each = (tokens + half * tokens // STEP_TOKENS + steps) // BLOCK_TOKENS + 2
    bench = Bench(policy, len(prompts) * each, tokens, seats=len(prompts))
    running = [bench.add(prompt, tokens) for prompt in prompts[:half]]
    while any(request.num_computed_tokens < tokens for request in running):
        bench.step()
    if case != ADMITTED:
        bench.take_all_but(half * (steps // BLOCK_TOKENS + 2))
    if case == HELD_BACK and policy != "observe" and getattr(bench.scheduler, "tracker", None) is not None:
        # As it does when pins are worth more than the wait.
        bench.scheduler.hooks.find_wait = (lambda *_: "pins",)
    for request, prompt in zip(running, prompts[half:], strict=True):
        if case == GAPPED:
            bench.forget(request, range(GAP_BLOCKS, 2 * GAP_BLOCKS))
        shared = list(request.all_token_ids[: int(SHARED * tokens)]) if case == GAPPED else []
        bench.add(shared + prompt[len(shared) :], tokens)
    return bench


def measure_steps(requests: int, tokens: int, steps: int, case: str) -> list[dict[str, Any]]:
    prompts = make_prompts(2 * requests, tokens)
    benches = {name: fill_bench(name, prompts, steps, case) for name in SCHEDULERS}
    times: dict[str, list[float]] = {name: [] for name in SCHEDULERS}
    gc.collect()
    gc.disable()
    for _ in range(steps):
        for name, bench in benches.items():
            times[name].append(bench.step())
    gc.enable()
    waiting = {len(bench.scheduler.waiting) for bench in benches.values()}
    assert len(waiting) == 1, "the schedulers must do the same to be compared"
    assert case == ADMITTED or waiting == {requests}, "fewer steps: what they take must be no room for a request"
    return [describe(case, name, times[name], times["vllm"]) for name in SCHEDULERS]


def cache_prompt(policy: str, prompt: list[int]) -> Bench:
    bench = Bench(policy, 2 * len(prompt) // BLOCK_TOKENS, len(prompt), seats=16)
    request = bench.add(prompt, 1000)
    bench.admit(request)
    bench.end(request)
    return bench


def place_gaps(gaps: int, blocks: int) -> list[int]:
    """The blocks in gaps that are spread evenly over a prompt."""
    starts = [blocks * (place + 1) // (gaps + 1) for place in range(gaps)]
    return [index for start in starts for index in range(start, start + GAP_BLOCKS)]


def measure_admissions(tokens: int, repeats: int) -> list[dict[str, Any]]:
    """Each prompt is cached but for its gaps, or but for as many blocks at its end."""
    (prompt,) = make_prompts(1, tokens)
    blocks = tokens // BLOCK_TOKENS
    benches = {name: cache_prompt(name, prompt) for name in SCHEDULERS}
    lines = []
    for gaps in (1, 3):
        holes = place_gaps(gaps, blocks)
        lost: dict[tuple[str, str], Sequence[int]] = {
            (name, "prefix"): range(blocks - len(holes), blocks) for name in SCHEDULERS
        }
        lost["asymcache", f"{gaps} gaps"] = holes
        times = time_admissions(benches, prompt, lost, repeats)
        lines += [
            describe(f"{kind}, {len(holes)} blocks lost", name, found, times["vllm", "prefix"])
            for (name, kind), found in times.items()
        ]
    return lines


def time_admissions(
    benches: dict[str, Bench], prompt: list[int], lost: dict[tuple[str, str], Sequence[int]], repeats: int
) -> dict[tuple[str, str], list[float]]:
    times: dict[tuple[str, str], list[float]] = {case: [] for case in lost}
    gc.disable()
    for _ in range(repeats):
        for (name, kind), indices in lost.items():
            bench = benches[name]
            request = bench.add(prompt, 1000)
            bench.forget(request, indices)
            times[name, kind].append(bench.admit(request))
            bench.end(request)
    gc.enable()
    return times


def describe(case: str, scheduler: str, times: Sequence[float], stock: Sequence[float]) -> dict[str, Any]:
    median_ms, stock_ms = (1e3 * statistics.median(found) for found in (times, stock))
    return {
        "case": case,
        "scheduler": scheduler,
        "median_ms": round(median_ms, 3),
        "mean_ms": round(1e3 * statistics.mean(times), 3),
        "p99_ms": round(1e3 * sorted(times)[int(0.99 * len(times))], 3),
        "times_stock": round(median_ms / stock_ms, 2),
        "more_than_stock_ms": round(median_ms - stock_ms, 3),
    }


def profile_steps(requests: int, tokens: int, steps: int) -> None:
    bench = fill_bench("asymcache", make_prompts(2 * requests, tokens), steps, GAPPED)
    with cProfile.Profile() as profiler:
        for _ in range(steps):
            bench.step()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(20)


def profile_admissions(tokens: int, repeats: int) -> None:
    (prompt,) = make_prompts(1, tokens)
    bench = cache_prompt("asymcache", prompt)
    profiler = cProfile.Profile()
    for _ in range(repeats):
        request = bench.add(prompt, 1000)
        bench.forget(request, place_gaps(3, tokens // BLOCK_TOKENS))
        profiler.runcall(bench.admit, request)
        bench.end(request)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(20)


def print_table(lines: Sequence[dict[str, Any]]) -> None:
    for cells in [list(lines[0]), *(line.values() for line in lines)]:
        first, *others = map(str, cells)
        print(f"{first:<28}" + "".join(f"{cell:>20}" for cell in others))  # noqa: T201


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="a JSON list instead of a table")
    parser.add_argument("--requests", type=int, default=64, metavar="N", help="that decode, and as many that wait")
    parser.add_argument("--tokens", type=int, default=32_768, metavar="N", help="of each prompt")
    parser.add_argument("--steps", type=int, default=150, metavar="N")
    parser.add_argument("--repeats", type=int, default=40, metavar="N", help="admissions of each kind")
    parser.add_argument("--profile", action="store_true", help="where asymcache's time goes, instead")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    requests, tokens, steps = arguments.requests, arguments.tokens, arguments.steps
    if arguments.profile:
        profile_steps(requests, tokens, steps)
        profile_admissions(tokens, arguments.repeats)
        return
    lines = [line for case in CASES for line in measure_steps(requests, tokens, steps, case)]
    lines += measure_admissions(tokens, arguments.repeats)
    if arguments.json:
        print(json.dumps(lines, indent=2))  # noqa: T201
    else:
        print_table(lines)


if __name__ == "__main__":
    main()
