"""Jobs over two caches: asked for by name, and pushed out of the GPU's cache by others."""

from __future__ import annotations

import random

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
    """The first turn of job "mine", PROMPT, is in the host's memory alone."""
    lone = make_tiered(model_path)
    ask(lone, "mine/0", PROMPT)
    lone.run_until_idle()
    push_out(lone, 1, 2, 3, 4)
    assert lone.find_blocks(PROMPT) == []
    return lone
