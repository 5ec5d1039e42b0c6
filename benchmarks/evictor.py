"""Nanoseconds that each policy takes per block, beside stock vLLM's free list; and the paper's O(n) ablation.

python benchmarks/evictor.py [--json] [--blocks N ...] [--batch N] [--repeats N] [--linear]
python benchmarks/evictor.py --ablation [--json]
python benchmarks/evictor.py --groups [--json] [--repeats N]

Blocks are vLLM's own objects and go through the block-queue interface, as in the engine. Policies take turns within
each repeat, so that a disturbance of the machine meets all of them; the figures are medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from agentcache._evictor import (
    AsymCacheEvictor,
    AsymCacheLinearEvictor,
    Evictor,
    LruEvictor,
    MaxScoreEvictor,
    PensieveEvictor,
    ReturnTimeEvictor,
    ReturnWaits,
)
from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.policy.registry import LEAST_WAIT_S

BLOCK_TOKENS = 16
BATCHES = 50
REMOVALS = 5_000
# Lifespan 10 s, reuse probability 0.5, slope ratio 40; costs of about the size that an 8B model has on an H200.
FREQUENCY: dict[str, Any] = {"alpha_s": 14.4, "beta_s": 0.36, "tau0_s": 9.75}
COST: dict[str, Any] = {"slope_s": 1e-9, "base_s": 2.5e-5, "floor_s": 1e-7}

EVICTORS: dict[str, Callable[[int], Evictor]] = {
    "lru": lambda _: LruEvictor(),
    "asymcache": lambda n: AsymCacheEvictor(num_blocks=n, **FREQUENCY, **COST),
    "asymcache-linear": lambda n: AsymCacheLinearEvictor(num_blocks=n, **FREQUENCY, **COST),
    "agentcache": lambda n: ReturnTimeEvictor(num_blocks=n, **COST, waits=ReturnWaits(least_wait_s=LEAST_WAIT_S)),
    "max-score": lambda n: MaxScoreEvictor(num_blocks=n, **FREQUENCY),
    "pensieve": lambda n: PensieveEvictor(num_blocks=n, **COST),
}
LINEAR = ("asymcache-linear", "max-score", "pensieve")
LINEAR_BLOCKS = 10_000

# BlockQueue or FreeKVCacheBlockQueue: the same methods, no common type.
Queue = Any


class StepClock:
    """Seconds that go on by a millisecond each time they are read: what a scheduler's steps do."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1e-3
        return self.now_s


def make_blocks(count: int) -> list[KVCacheBlock]:
    """Blocks with the positions that sequences of up to 32k tokens give them."""
    chance = random.Random(0)
    blocks = [KVCacheBlock(block_id) for block_id in range(count)]
    for block in blocks:
        block._block_hash_num_tokens = BLOCK_TOKENS * chance.randrange(1, 2049)
    return blocks


def make_queue(policy: str, count: int, batch: int) -> tuple[Queue, list[KVCacheBlock]]:
    """A queue of `count` free blocks, freed in requests of `batch`, ids and positions in random order."""
    blocks = make_blocks(count)
    queue: Queue
    if policy == "vllm":
        queue = FreeKVCacheBlockQueue(blocks)
    else:
        queue = BlockQueue(blocks, blocks, EVICTORS[policy](count), StepClock())
    taken = queue.popleft_n(count)
    random.Random(1).shuffle(taken)
    for start in range(0, count, batch):
        queue.append_n(taken[start : start + batch])
    return queue, blocks


def time_pop_append(queue: Queue, batch: int) -> tuple[float, float]:
    """Nanoseconds per block to take `batch` blocks, and to take them and give them back."""
    pop_ns, start_ns = 0, time.perf_counter_ns()
    for _ in range(BATCHES):
        pop_start_ns = time.perf_counter_ns()
        blocks = queue.popleft_n(batch)
        pop_ns += time.perf_counter_ns() - pop_start_ns
        queue.append_n(blocks)
    return pop_ns / (BATCHES * batch), (time.perf_counter_ns() - start_ns) / (BATCHES * batch)


def time_remove(queue: Queue, free: Sequence[KVCacheBlock], batch: int, chance: random.Random) -> float:
    """Nanoseconds per block to remove a random sample, which is given back afterwards."""
    # Not of the queue's own list: to sort the blocks for it would leave one policy with cold caches, another not.
    sample = chance.sample(free, min(REMOVALS, len(free) // 2))
    start_ns = time.perf_counter_ns()
    for block in sample:
        queue.remove(block)
    elapsed_ns = time.perf_counter_ns() - start_ns
    for start in range(0, len(sample), batch):
        queue.append_n(sample[start : start + batch])
    return elapsed_ns / len(sample)


def measure(policies: Sequence[str], count: int, batch: int, repeats: int) -> list[dict[str, Any]]:
    """One line per policy at `count` free blocks."""
    queues = {policy: make_queue(policy, count, batch) for policy in policies}
    pop_append: dict[str, list[tuple[float, float]]] = {policy: [] for policy in policies}
    remove: dict[str, list[float]] = {policy: [] for policy in policies}
    chance = random.Random(2)
    gc.collect()
    gc.disable()
    for _ in range(repeats):
        for policy, (queue, free) in queues.items():
            pop_append[policy].append(time_pop_append(queue, batch))
            remove[policy].append(time_remove(queue, free, batch, chance))
    gc.enable()
    return [
        {
            "policy": policy,
            "blocks": count,
            "batch": batch,
            "pop_ns": round(statistics.median(pop for pop, _ in pop_append[policy])),
            "pop_append_ns": round(statistics.median(both for _, both in pop_append[policy])),
            "remove_ns": round(statistics.median(remove[policy])),
        }
        for policy in policies
    ]


def time_requests(policy: str, blocks: int, requests: int, per_request: int) -> float:
    """Seconds in the evictor for requests that each take `per_request` blocks, one by one, and free them together."""
    evictor = EVICTORS[policy](blocks)
    chance = random.Random(3)
    evictor.add(range(blocks), [BLOCK_TOKENS * chance.randrange(1, 2049) for _ in range(blocks)], 0.0)
    positions = [BLOCK_TOKENS * (index + 1) for index in range(per_request)]
    total_s = 0.0
    for request in range(requests):
        now_s = 0.25 * (request + 1)
        start_s = time.perf_counter()
        taken = [evictor.evict(1, now_s)[0] for _ in range(per_request)]
        evictor.add(taken, positions, now_s)
        total_s += time.perf_counter() - start_s
    return total_s


def measure_ablation(per_request: int = 512, sampled: int = 24) -> list[dict[str, Any]]:
    """The paper's setting: 2,400 requests on 8,000 blocks. The scan is timed for some requests: each costs the same."""
    requests, blocks = 2_400, 8_000
    lines = []
    for policy, timed in (("asymcache-linear", sampled), ("asymcache", requests)):
        seconds = time_requests(policy, blocks, timed, per_request) * requests / timed
        lines.append({"policy": policy, "blocks": blocks, "requests": requests, "blocks_per_request": per_request,
                      "requests_timed": timed, "control_plane_s": round(seconds, 3)})  # fmt: skip
    return lines


def measure_groups(repeats: int, blocks: int = 100_000, per_group: int = 50) -> list[dict[str, Any]]:
    """agentcache's evictor alone, each block met for the first time: taken one by one, or many at once."""
    elapsed_ns: dict[int, list[float]] = {count: [] for count in (1, 8, 50, 100, 500)}
    for repeat in range(repeats):
        chance = random.Random(repeat)
        for count, samples in elapsed_ns.items():
            evictor = EVICTORS["agentcache"](blocks)
            ids = chance.sample(range(blocks), blocks)
            for start in range(0, blocks, per_group):
                positions = [BLOCK_TOKENS * chance.randrange(1, 2049) for _ in range(per_group)]
                evictor.add(ids[start : start + per_group], positions, 1e-3 * start)
            for call in range(40):
                start_ns = time.perf_counter_ns()
                evictor.evict(count, 1e-3 * (blocks + call))
                samples.append((time.perf_counter_ns() - start_ns) / count)
    return [
        {
            "blocks": blocks,
            "groups": blocks // per_group,
            "taken at once": count,
            "ns per block": round(statistics.median(samples)),
        }
        for count, samples in elapsed_ns.items()
    ]


def print_table(lines: Sequence[dict[str, Any]]) -> None:
    for cells in [list(lines[0]), *(line.values() for line in lines)]:
        print("".join(f"{cell:>20}" for cell in cells))  # noqa: T201


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="a JSON list instead of a table")
    parser.add_argument("--blocks", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="N")
    parser.add_argument("--batch", type=int, default=100, metavar="N", help="blocks taken and freed at once")
    parser.add_argument("--repeats", type=int, default=9, metavar="N")
    parser.add_argument("--linear", action="store_true", help=f"O(n) policies above {LINEAR_BLOCKS} blocks, too")
    parser.add_argument("--groups", action="store_true", help="agentcache's evictor alone, in 2,000 groups, instead")
    parser.add_argument("--ablation", action="store_true", help="the paper's O(n) against O(log n) instead")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.ablation:
        lines = measure_ablation()
    elif arguments.groups:
        lines = measure_groups(arguments.repeats)
    else:
        lines = []
        for count in arguments.blocks:
            skipped = () if arguments.linear or count <= LINEAR_BLOCKS else LINEAR
            policies = [policy for policy in ("vllm", *EVICTORS) if policy not in skipped]
            lines += measure(policies, count, arguments.batch, arguments.repeats)
    if arguments.json:
        print(json.dumps(lines, indent=2))  # noqa: T201
    else:
        print_table(lines)


if __name__ == "__main__":
    main()
