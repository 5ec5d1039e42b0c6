"""What an engine says of itself at its start, and a policy with the evictor of another."""

from __future__ import annotations

import pytest
from lone_scheduler import make_config, make_scheduler

from agentcache.engine import scheduler as scheduler_module
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.policy.lru import LruEvictor
from agentcache.policy.return_time import ReturnTimeEvictor

NUM_BLOCKS = 40


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(scheduler_module.logger, "info", lines.append)
    return lines


@pytest.mark.parametrize(
    ("knobs", "banner"),
    [
        (
            {"runtime": {"tool_parser": "hermes"}},
            "agentcache: policy agentcache; tool calls read by hermes; costs estimated from the data sheet of cpu "
            "(agentcache profile measures them); multi-segment reuse on.",
        ),
        ({"policy": "lru"}, "agentcache: policy lru."),
        (
            {"policy": "continuum-code", "gpu": "h200", "runtime": {"tool_parser": None}},
            "agentcache: policy continuum-code; tool calls read by nobody, for want of a --tool-call-parser; "
            "costs estimated from the data sheet of h200 (agentcache profile measures them).",
        ),
        (
            {"policy": "asymcache", "evictor": "lru", "segments": {"enabled": False}},
            "agentcache: policy asymcache with the evictor of lru; tool calls read by nobody, for want of a "
            "--tool-call-parser; costs estimated from the data sheet of cpu (agentcache profile measures them).",
        ),
    ],
)
def test_an_engine_says_once_what_it_does(
    tiny_model_path: str, said: list[str], knobs: dict[str, object], banner: str
) -> None:
    make_scheduler(make_config(tiny_model_path, SCHEDULER_CLASS, **knobs), NUM_BLOCKS)
    assert said == [banner]


def test_the_banner_says_why_segments_are_not_reused(tiny_model_path: str, said: list[str]) -> None:
    config = make_config(tiny_model_path, SCHEDULER_CLASS, {"enable_prefix_caching": False}, policy="asymcache")
    make_scheduler(config, NUM_BLOCKS)
    assert said[0].endswith("; prefix reuse only: prefix caching is off.")


@pytest.mark.parametrize(("knobs", "kind"), [({}, ReturnTimeEvictor), ({"evictor": "lru"}, LruEvictor)])
def test_an_ablation_changes_the_evictor_alone(
    tiny_model_path: str, knobs: dict[str, object], kind: type[object]
) -> None:
    runtime = {"tool_parser": "hermes"}
    config = make_config(tiny_model_path, SCHEDULER_CLASS, policy="agentcache", runtime=runtime, **knobs)
    scheduler = make_scheduler(config, NUM_BLOCKS)
    assert isinstance(scheduler.evictor.inner, kind)
    assert scheduler.tracker is not None
    assert scheduler.gap_filler is not None
