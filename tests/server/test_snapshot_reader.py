from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from agentcache.engine.blocks.block_queue import Evictions
from agentcache.engine.rpc.snapshot import (
    BlockCounts,
    EngineSnapshot,
    RequestCounts,
)
from agentcache.engine.views import SegmentCounts
from agentcache.server import snapshot_reader
from agentcache.server.metrics import render_metrics
from agentcache.server.snapshot_reader import MIN_INTERVAL_S, Reading, SnapshotReader


def make_engine(engine: int, **changes: Any) -> EngineSnapshot:
    found: dict[str, Any] = {
        "engine": engine,
        "policy": "asymcache",
        "knobs": {"segments": {"enabled": True}, "chunking": {"enabled": False}},
        "segments": SegmentCounts(
            requests={2: 5, 3: 1, 40: 1}, fill_tokens=640, islands_dropped=4, fallbacks={"multi-modal input": 2}
        ),
        "segments_obstacle": None,
        "evictions": {"capacity": Evictions(blocks=8, age_s=20.0)},
        "lambda_value": 0.25,
        "prefill_budget": 512,
        "blocks": BlockCounts(total=10, used=4, free=6, tokens_per_block=16),
        "requests": RequestCounts(running=1, waiting=0),
    }
    return EngineSnapshot(**{**found, **changes})


class Engines:
    """What the engines answer next; every call is counted."""

    def __init__(self, *engines: EngineSnapshot | None) -> None:
        self.now_s = 0.0
        self.calls = 0
        self.answer: Callable[[], list[Any]] = lambda: [one and one.model_dump(mode="json") for one in engines]

    async def ask(self) -> list[Any]:
        self.calls += 1
        return self.answer()

    def make_reader(self) -> SnapshotReader:
        return SnapshotReader(self.ask, lambda: self.now_s)


def test_engines_are_read_save_those_with_another_scheduler() -> None:
    engines = Engines(make_engine(0), None, make_engine(2))
    assert asyncio.run(engines.make_reader().read()) == Reading((make_engine(0), make_engine(2)), 0.0)


def test_engines_are_asked_once_in_an_interval_however_many_read() -> None:
    engines = Engines(make_engine(0))

    async def read() -> None:
        reader = engines.make_reader()
        await asyncio.gather(*(reader.read() for _ in range(50)))
        assert engines.calls == 1
        engines.now_s = 0.5 * MIN_INTERVAL_S
        assert (reading := await reader.read()) is not None
        assert reading.age_s == engines.now_s
        engines.now_s = MIN_INTERVAL_S
        await reader.read()
        assert engines.calls == 2

    asyncio.run(read())


def test_an_engine_that_counts_anew_is_asked_at_once() -> None:
    engines = Engines(make_engine(0))

    async def read() -> Reading | None:
        reader = engines.make_reader()
        await reader.read()
        engines.answer = lambda: [make_engine(0, policy="lru").model_dump(mode="json")]
        reader.forget()
        return await reader.read()

    assert asyncio.run(read()) == Reading((make_engine(0, policy="lru"),), 0.0)


def test_what_was_counted_before_is_no_answer_any_more() -> None:
    engines = Engines(make_engine(0))

    def fail() -> list[Any]:
        raise RuntimeError("the core is gone")

    async def read() -> Reading | None:
        reader = engines.make_reader()
        await reader.read()
        engines.answer = fail
        reader.forget()
        return await reader.read()

    assert asyncio.run(read()) is None


def test_a_failing_engine_leaves_the_last_answer_and_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    engines = Engines(make_engine(0))
    logging.getLogger("vllm").addHandler(caplog.handler)

    def fail() -> list[Any]:
        raise RuntimeError("the core\nis gone")

    async def read() -> None:
        reader = engines.make_reader()
        await reader.read()
        engines.answer, engines.now_s = fail, 7.0
        assert await reader.read() == Reading((make_engine(0),), 7.0)

    try:
        asyncio.run(read())
    finally:
        logging.getLogger("vllm").removeHandler(caplog.handler)
    assert "The engine could not tell its counts: the core is gone" in caplog.text


def test_an_engine_that_never_answers_does_not_hold_up_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_reader, "ANSWER_WAIT_S", 0.01)

    async def hang() -> list[Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def read() -> Reading | None:
        return await SnapshotReader(hang).read()

    assert asyncio.run(read()) is None


def test_values_are_as_counted_with_a_series_for_each_engine() -> None:
    engines = make_engine(0), make_engine(1, policy="lru", tier_obstacle_slug="kv-events")
    lines = render_metrics(Reading(engines, 1.5)).decode().splitlines()
    samples = {line for line in lines if not line.startswith("#")}
    assert {
        'agentcache:policy_info{chunking="off",engine="0",obstacle="none",policy="asymcache",segments="on",'
        'tier_obstacle="none"} 1.0',
        'agentcache:policy_info{chunking="off",engine="1",obstacle="none",policy="lru",segments="on",'
        'tier_obstacle="kv-events"} 1.0',
        'agentcache:fill_tokens_total{engine="0"} 640.0',
        'agentcache:islands_dropped_total{engine="1"} 4.0',
        'agentcache:segment_fallbacks_total{engine="0",reason="multi_modal_input"} 2.0',
        'agentcache:evicted_blocks_total{cause="capacity",engine="0"} 8.0',
        'agentcache:evicted_block_age_seconds_total{cause="capacity",engine="0"} 20.0',
        'agentcache:lambda{engine="0"} 0.25',
        'agentcache:prefill_budget_tokens{engine="0"} 512.0',
        'agentcache:request_segments_bucket{engine="0",le="2.0"} 5.0',
        'agentcache:request_segments_bucket{engine="0",le="3.0"} 6.0',
        'agentcache:request_segments_bucket{engine="0",le="16.0"} 6.0',
        'agentcache:request_segments_bucket{engine="0",le="+Inf"} 7.0',
        'agentcache:request_segments_count{engine="0"} 7.0',
        'agentcache:request_segments_sum{engine="0"} 53.0',
        "agentcache:snapshot_age_seconds 1.5",
    } <= samples


@pytest.mark.parametrize("reading", [None, Reading((), 0.0)])
def test_metrics_without_an_engine_name_none(reading: Reading | None) -> None:
    samples = [line for line in render_metrics(reading).decode().splitlines() if not line.startswith("#")]
    assert samples == ([] if reading is None else ["agentcache:snapshot_age_seconds 0.0"])


def test_what_a_policy_does_not_have_has_no_sample() -> None:
    bare = make_engine(0, segments=None, evictions={}, lambda_value=None, prefill_budget=None)
    samples = [line for line in render_metrics(Reading((bare,), 0.0)).decode().splitlines() if line[0] != "#"]
    assert [line.partition("{")[0].partition(" ")[0] for line in samples] == [
        "agentcache:policy_info",
        "agentcache:snapshot_age_seconds",
    ]
