"""What tests have an engine do in its process: see engine_alone.py."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from crowd import Crowd, WindowedCrowd, note_preemptions
from live_engine import LiveEngine, Reply, make_prompt
from vllm.config import CUDAGraphMode
from vllm.v1.kv_cache_interface import MambaSpec

Requests = Sequence[tuple[list[int], int]]
Sampling = dict[str, Any]
# So many likely tokens of each step are told, vLLM's most: see `find_distance`.
TOLD: dict[str, Any] = {"logprobs": 20}


class StatelyCrowd(Crowd):
    """Where layers keep a state, no gap is filled, and all that is lost is what others push out."""

    def lose_block(self) -> None:
        pass


CROWDS = {"full": Crowd, "windows": WindowedCrowd, "states": StatelyCrowd}


class Served(NamedTuple):
    schedules_ahead: bool
    has_graphs: bool
    has_full_graphs: bool
    """Of whole steps, at least of those that only decode."""
    caches_prefixes: bool


class Ran(NamedTuple):
    """What jobs were told, and what happened meanwhile."""

    turns: list[tuple[list[int], int, Reply]]
    fill_tokens: int
    segments: int
    cached: int
    evicted: int
    preempted: int
    resets: int
    accepted: int
    """Draft tokens."""
    share: float
    """Of what the jobs leave, as much has room in the cache."""


class Wronged(NamedTuple):
    prompt: list[int]
    first: Reply
    again: Reply
    wrong: Reply


def describe(engine: LiveEngine) -> Served:
    config = engine.vllm_config
    mode = config.compilation_config.cudagraph_mode
    return Served(
        engine.schedules_ahead,
        has_graphs=mode != CUDAGraphMode.NONE,
        has_full_graphs=mode.has_full_cudagraphs(),
        caches_prefixes=engine.scheduler.kv_cache_manager.enable_caching,
    )


def ask_alone(engine: LiveEngine, requests: Requests, sampling: Sampling | None = None) -> list[Reply]:
    return [engine.ask(prompt, length, **TOLD | (sampling or {})) for prompt, length in requests]


def ask_together(engine: LiveEngine, requests: Requests, sampling: Sampling | None = None) -> list[Reply]:
    names = [engine.add(prompt, length, **TOLD | (sampling or {})) for prompt, length in requests]
    engine.finish()
    return [engine.reply(name) for name in names]


def ask_anew(engine: LiveEngine, requests: Requests) -> list[Reply]:
    """By an engine that has nothing cached."""
    engine.use(policy="agentcache", look_s=0.01)
    return ask_together(engine, requests)


def ask_behind_gap(engine: LiveEngine, prompt: list[int], gap: list[int]) -> tuple[Reply, Reply, int]:
    """Return the reply before blocks of full attention are lost, the one after, and how many tokens were filled."""
    engine.use()
    before = engine.ask(prompt, 16, **TOLD)
    engine.forget(prompt, gap, group=engine.scheduler.gap_filler.finder.rule.full[0])
    return before, engine.ask(prompt, 16, **TOLD), engine.fill_tokens


def ask_with_wrong_block(engine: LiveEngine, group: int, seed: int) -> Wronged:
    """Of a prompt's two full blocks, for that group of layers, the second becomes another prompt's."""
    size = engine.scheduler.block_size
    prompt, other = (make_prompt(each, 2 * size + 9) for each in (seed, seed + 1))
    engine.use(policy="agentcache")
    first, _, again = ask_alone(engine, [(prompt, 16), (other, 16), (prompt, 16)])
    cache = engine.pool.cached_block_hash_to_block
    own, others = (engine.block_keys(each, group=group)[1] for each in (prompt, other))
    block = cache.get_one_block(others)
    engine.forget(prompt, [1], group=group)
    cache.insert(own, block)
    return Wronged(prompt, first, again, engine.ask(prompt, 16, **TOLD))


def run_jobs(
    engine: LiveEngine, kind: str, policy: str = "agentcache", sampling: Sampling | None = None, scale: int = 1
) -> Ran:
    """Six jobs of four turns, that come back while others run."""
    # Between two turns of a job lie some hundred looks at the clock.
    engine.use(policy=policy, look_s=0.01 if policy == "agentcache" else 1.0)
    crowd = CROWDS[kind](engine, random.Random(4), sampling=TOLD | (sampling or {}), scale=scale)
    with pytest.MonkeyPatch.context() as patch:
        note_preemptions(engine, crowd.preempted, patch)
        crowd.run(jobs=6, turns=4)
    scheduler = engine.scheduler
    stats = getattr(getattr(scheduler, "gap_filler", None), "stats", None)
    drafts = [each.spec_decoding_stats for each in engine.stats[0].scheduler if each.spec_decoding_stats]
    return Ran(
        crowd.turns,
        fill_tokens=stats.fill_tokens if stats else 0,
        segments=sum(stats.requests.values()) if stats else 0,
        cached=sum(reply.cached for *_, reply in crowd.turns),
        evicted=sum(cause.blocks for cause in scheduler.block_queue.evictions.values()),
        preempted=len(crowd.preempted),
        resets=crowd.resets,
        accepted=sum(each.num_accepted_tokens for each in drafts),
        share=engine.pool.num_gpu_blocks / _count_left(engine, crowd),
    )


def _count_left(engine: LiveEngine, crowd: Crowd) -> int:
    """Count what a cache without bounds would keep: blocks of each group with attention, states at each turn's end."""
    keys = {key for prompt, _, reply in crowd.turns for key in engine.block_keys(prompt + reply.tokens)}
    groups = engine.scheduler.kv_cache_config.kv_cache_groups
    states = sum(isinstance(group.kv_cache_spec, MambaSpec) for group in groups)
    return (len(groups) - states) * len(keys) + states * len(crowd.turns)
