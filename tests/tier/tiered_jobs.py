"""Jobs over two caches: asked for by name, and pushed out of the GPU's cache by others."""

from __future__ import annotations

import random
from collections.abc import Callable

from sizes import pick_size
from tiered_scheduler import TieredScheduler, make_tiered

from tool_runtime.agent.job import ToolCall

SEARCH = ToolCall("search", "{}")
# Nine full blocks.
PROMPT = list(range(1, 151))


def ask(lone: TieredScheduler, name: str, prompt: list[int], *, last: bool = False, tokens: int = 3) -> None:
    lone.add(name, prompt, output_tokens=tokens, calls=[] if last else [SEARCH], session_id=name.partition("/")[0])


def make_tokens(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(8000) for _ in range(count)]


def push_out(lone: TieredScheduler, *seeds: int) -> None:
    """Other jobs use the GPU's cache."""
    for seed in seeds:
        ask(lone, f"other-{seed}/0", make_tokens(seed, 300))
        lone.run_until_idle()


def make_evicted(model_path: str) -> TieredScheduler:
    """The first turn of job "mine", PROMPT, is in the CPU cache alone."""
    lone = make_tiered(model_path)
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    push_out(lone, 1, 2, 3, 4)
    assert lone.find_blocks(PROMPT) == []
    return lone


def run_at_random(
    model_path: str, seed: int, watch: Callable[[TieredScheduler], object] = lambda _: None
) -> TieredScheduler:
    """Jobs share a system prompt; the caches hold a fraction of them, and copies end whenever they like."""
    chance = random.Random(seed)
    lone = make_tiered(
        model_path,
        blocks=chance.choice([24, 40, 64]),
        host_blocks=chance.choice([3, 20, 60, 200]),
        in_flight=chance.choice([1, 2]),
        pace=chance.choice([0.05, 0.3, 1.0]),
        seed=seed,
        policy=("agentcache", "agentcache-interactive")[seed % 2],
    )
    # A fetch of more comes in parts.
    lone.scheduler.tier.copies.most_fetched = random.Random(seed).choice([2, 6, 1000])
    watch(lone)
    system = make_tokens(1000, 40)
    prompts = {job: system + make_tokens(job, chance.randint(20, 200)) for job in range(8)}
    turns = dict.fromkeys(prompts, 0)
    for _ in range(pick_size(60, 200)):
        job = chance.choice(list(prompts))
        name = f"job-{job}/{turns[job]}"
        if f"job-{job}/{turns[job] - 1}" in lone.scheduler.requests:
            if chance.random() < 0.1:
                lone.abort(f"job-{job}/{turns[job] - 1}")
            continue
        ask(lone, name, prompts[job], last=chance.random() < 0.1, tokens=chance.randint(1, 12))
        turns[job] += 1
        prompts[job] = (prompts[job] + make_tokens(chance.randrange(10**6), chance.randint(5, 60)))[:330]
        for _ in range(chance.randint(0, 12)):
            lone.step()
        if chance.random() < 0.03:
            lone.scheduler.reset_prefix_cache(
                # What runs cannot be reset under a connector while a step is under way, in stock vLLM as well.
                reset_running_requests=lone.in_flight == 1 and chance.random() < 0.5,
                reset_connector=chance.random() < 0.5,
            )
    lone.run_until_idle()
    return lone
