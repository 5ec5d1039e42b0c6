"""Engines that can reuse cached blocks only as prefixes say why: one line at the start, one word in the metrics."""

from __future__ import annotations

import re

import pytest
from made_obstacles import (
    DOCUMENTED,
    make_scheduler,
    read_label,
)

from agentcache.engine.rpc.snapshot import make_snapshot
from agentcache.engine.segments.obstacles import Obstacle, find_engine_obstacle


@pytest.mark.parametrize("obstacle", Obstacle, ids=lambda each: each.slug)
def test_an_obstacle_is_one_line_and_one_word(
    tiny_model_path: str, vllm_log: pytest.LogCaptureFixture, obstacle: Obstacle
) -> None:
    scheduler = make_scheduler(tiny_model_path, obstacle)
    assert scheduler.gap_filler is None
    assert find_engine_obstacle(scheduler) is obstacle
    lines = [line for line in vllm_log.messages if line.startswith("Cached blocks are reused as prefixes only")]
    assert lines == [f"Cached blocks are reused as prefixes only: {obstacle.text}."]
    assert make_snapshot(scheduler).segments_obstacle == obstacle.text
    assert read_label(scheduler) == obstacle.slug


def test_an_engine_without_an_obstacle_says_none(tiny_model_path: str, vllm_log: pytest.LogCaptureFixture) -> None:
    scheduler = make_scheduler(tiny_model_path, None)
    assert scheduler.gap_filler is not None
    assert read_label(scheduler) == "none"
    assert not [line for line in vllm_log.messages if "prefixes only" in line]


def test_the_documented_obstacles_are_all_there_are() -> None:
    section = DOCUMENTED.read_text().partition("\n## Obstacles\n")[2].partition("\n#")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)[1:] == [each.slug for each in Obstacle]
