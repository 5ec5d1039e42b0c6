"""Routers that match prefixes follow vLLM's KV events: they must tell what is cached, whatever the policy does."""

from __future__ import annotations

import random
from typing import Any

import pytest
from gapped_scheduler import Soak
from gapped_scheduler import make_lone as make_filling
from grouped_scheduler import FULL, RECURRENT, WINDOW
from grouped_scheduler import make_lone as make_grouped
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from prefix_router import EVENTS, PrefixRouter
from steered_scheduler import SEARCH, Life, make_lone, run_until_idle, tokens_of

WARNING = "KV events are on and gaps are filled"


@pytest.mark.parametrize("in_flight", [1, 2])
def test_events_tell_what_is_cached_while_jobs_come_and_go(tiny_model_path: str, in_flight: int) -> None:
    life = Life(make_lone(tiny_model_path, "agentcache", 50, in_flight, engine=EVENTS), random.Random(5))
    router = PrefixRouter(life.lone)
    for _ in range(400):
        life.step()
        router.check()
    assert router.removed > 200
    assert router.resets


@pytest.mark.parametrize("specs", [[FULL], [WINDOW, FULL], [FULL, RECURRENT]], ids=["full", "windows", "states"])
@pytest.mark.parametrize("blocks", [60])
def test_events_tell_what_is_cached_in_every_group(tiny_model_path: str, specs: list[Any], blocks: int) -> None:
    lone = make_grouped(tiny_model_path, specs, blocks, engine=EVENTS, policy="agentcache")
    life = Life(lone, random.Random(7))
    router = PrefixRouter(lone)
    for _ in range(300):
        life.step()
        router.check()
    assert router.removed > 100
    assert {group for group, _ in router.stored} == set(range(len(specs)))


def test_events_tell_what_is_cached_while_gaps_are_filled(tiny_model_path: str) -> None:
    lone = make_filling(tiny_model_path, 50, 2, EVENTS, policy="agentcache")
    soak, router = Soak(lone, 3), PrefixRouter(lone)
    for _ in range(400):
        soak.run(1)
        router.check()
    assert sum(lone.scheduler.gap_filler.stats.requests.values()) > 5
    assert soak.preempted
    assert router.removed > 200


def compare_hits(lone: LoneScheduler) -> list[tuple[int, int]]:
    """Of each turn of some jobs in too small a cache: the blocks that a router expects, and those that are hit."""
    router, pairs = PrefixRouter(lone), []
    for turn in range(3):
        for job in range(6):
            name = f"{job} {turn}"
            lone.add(name, tokens_of(job, 100 + 60 * turn), output_tokens=3, calls=(SEARCH,), session_id=f"{job}")
            router.check()
            expected = router.match(lone.scheduler.requests[name].block_hashes)
            steps = run_until_idle(lone)
            pairs.append((expected, sum(sum(step.hit_tokens.values()) for step in steps) // BLOCK_SIZE))
    return pairs


def make_small(model_path: str, *, fills_gaps: bool) -> LoneScheduler:
    knobs = {"pins": {"enabled": False}, "segments": {"enabled": fills_gaps}, "tuning": {"row_s": 0.0}}
    return make_lone(model_path, "agentcache", 40, engine=EVENTS, **knobs)


def test_a_router_finds_all_that_is_hit_without_segments(
    tiny_model_path: str, vllm_log: pytest.LogCaptureFixture
) -> None:
    pairs = compare_hits(make_small(tiny_model_path, fills_gaps=False))
    assert all(expected == hit for expected, hit in pairs)
    assert sum(hit for _, hit in pairs) > 10
    assert not any(line.startswith(WARNING) for line in vllm_log.messages)


def test_a_router_takes_an_engine_that_fills_gaps_for_cold(
    tiny_model_path: str, vllm_log: pytest.LogCaptureFixture
) -> None:
    pairs = compare_hits(make_small(tiny_model_path, fills_gaps=True))
    assert sum(expected for expected, _ in pairs) < sum(hit for _, hit in pairs) / 2
    (line,) = [line for line in vllm_log.messages if line.startswith(WARNING)]
    assert "--agentcache segments.enabled=false" in line


def test_no_warning_without_events(tiny_model_path: str, vllm_log: pytest.LogCaptureFixture) -> None:
    make_lone(tiny_model_path, "agentcache")
    assert not any(line.startswith(WARNING) for line in vllm_log.messages)
