"""What it costs an API server to choose an engine, by the number of engines, in microseconds a turn.

Each engine's cache is full with jobs of 32,000 tokens. Columns: hashing the prompt's blocks, which does not depend on
the engines; the choice for a job that is back, found by its name and by its prompt; the choice for a new job; booking
the end of a turn. The choice includes the note of which blocks the engine will have.

    python benchmarks/placement.py
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

from agentcache.policy.presets import find_cost_profile
from agentcache.policy.replicas.chain import Chain
from agentcache.policy.replicas.engine_load import PrefillCost
from agentcache.policy.replicas.placement import Placement

T = TypeVar("T")
BLOCK = 16
TOKENS = 32_000
CACHE_TOKENS = 500_000
ENGINES = (1, 2, 4, 8, 16, 32, 64)
TURNS = 40
SYSTEM = list(range(2_000))


class Stopwatch:
    """The microseconds of each part of a turn."""

    def __init__(self) -> None:
        self.taken_us: dict[str, list[float]] = {}

    def time(self, part: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = work()
        self.taken_us.setdefault(part, []).append(1e6 * (time.perf_counter() - began))
        return result

    def median_us(self, part: str) -> float:
        return statistics.median(self.taken_us[part])


def measure(engines: int) -> Stopwatch:
    """Fill the caches, then let known jobs come back and new ones begin."""
    cost = find_cost_profile("llama-3.1-8b", "h200").cost_model.recompute_cost(BLOCK)
    placement = Placement(engines, capacity_tokens=CACHE_TOKENS, prefill_cost=PrefillCost(cost, BLOCK))
    rng = random.Random(engines)
    prompts: dict[int, list[int]] = {}
    filling, watch = Stopwatch(), Stopwatch()
    for job in range(engines * CACHE_TOKENS // TOKENS):
        prompts[job] = SYSTEM + [rng.randrange(100_000) for _ in range(TOKENS - len(SYSTEM))]
        turn(placement, filling, "fill", name=f"{job}/0", prompt=prompts[job], job=f"job {job}" if job % 2 else None)
    for number in range(TURNS):
        job = rng.randrange(len(prompts))
        part = "back, named" if job % 2 else "back, by prompt"
        named = f"job {job}" if job % 2 else None
        turn(placement, watch, part, name=f"{job}/{number + 1}", prompt=prompts[job], job=named)
        fresh = SYSTEM + [rng.randrange(100_000) for _ in range(TOKENS - len(SYSTEM))]
        turn(placement, watch, "new", name=f"new {number}", prompt=fresh, job=f"new {number}")
    return watch


def turn(placement: Placement, watch: Stopwatch, part: str, *, name: str, prompt: list[int], job: str | None) -> None:
    """One request from its coming to its end; the prompt grows by its reply."""
    chain = watch.time("hash", lambda: Chain(prompt, BLOCK))
    watch.time(part, lambda: placement.place(name, chain, 0.0, job=job))
    placement.got_token(name)
    reply = list(range(64))
    watch.time("end", lambda: placement.finished(name, reply, 0.0))
    prompt += reply


def main() -> None:
    parts = ("hash", "back, named", "back, by prompt", "new", "end")
    print(f"| engines | {' | '.join(parts)} |")  # noqa: T201
    print("| ---: |" + " ---: |" * len(parts))  # noqa: T201
    for engines in ENGINES:
        watch = measure(engines)
        print(f"| {engines} | {' | '.join(f'{watch.median_us(part):,.0f}' for part in parts)} |")  # noqa: T201


if __name__ == "__main__":
    main()
