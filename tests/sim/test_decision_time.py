"""Policies that look at every block pay for it in virtual time, unless another step hides it."""

from __future__ import annotations

import pytest
from made_simulation import ConstantGpu, make_engine

from agentcache.sim.delays import SCANS, Scan
from agentcache.sim.engine import SimulatedEngine

BLOCK = 16
BLOCKS = 64
SCAN_S = 0.001


@pytest.fixture(autouse=True)
def slow_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCANS, "pensieve", Scan(SCAN_S))
    monkeypatch.setitem(SCANS, "asymcache-linear", Scan(SCAN_S, each_victim=True))


def make_full_engine(model_path: str, policy: str, *, async_scheduling: bool = False) -> SimulatedEngine:
    """An engine whose free blocks all have KV but one: a reply's last token has none."""
    engine = make_engine(
        model_path,
        policy,
        ConstantGpu(1.0),
        cache_tokens=BLOCKS * BLOCK,
        async_scheduling=async_scheduling,
    )
    engine.add("before", list(range(BLOCKS * BLOCK - BLOCK)), [1] * BLOCK)
    while not engine.idle:
        engine.clock.advance_to(engine.begin_step())
        engine.end_step()
    return engine


def find_delay(engine: SimulatedEngine) -> float:
    """From a request for four blocks to the begin of its step."""
    added_s = engine.clock.now()
    engine.add("now", list(range(5000, 5000 + 4 * BLOCK)), [1, 2])
    engine.clock.advance_to(engine.begin_step())
    return engine.end_step().started_s - added_s


@pytest.mark.parametrize(("policy", "scans"), [("asymcache", 0), ("pensieve", 1), ("asymcache-linear", 3)])
def test_a_step_begins_when_all_blocks_were_looked_at(tiny_model_path: str, policy: str, scans: int) -> None:
    engine = make_full_engine(tiny_model_path, policy)
    # Three have KV: the fourth block is the one without, which is taken first and unseen.
    assert find_delay(engine) == pytest.approx(scans * (BLOCKS - 1) * SCAN_S)


@pytest.mark.parametrize(("scan_s", "delay_s"), [(0.005, 0.0), (0.01, 0.25)])
def test_what_fits_into_the_step_before_costs_nothing(
    tiny_model_path: str, monkeypatch: pytest.MonkeyPatch, scan_s: float, delay_s: float
) -> None:
    monkeypatch.setitem(SCANS, "pensieve", Scan(scan_s))
    engine = make_full_engine(tiny_model_path, "pensieve", async_scheduling=True)
    engine.add("first", list(range(3000, 3000 + BLOCK)), [1] * 4)
    first_ends_s = engine.begin_step()
    # 63 and 62 blocks are looked at: one each for what the first request writes and for the second's prompt.
    engine.add("second", list(range(5000, 5000 + BLOCK)), [1] * 4)
    assert engine.begin_step() - first_ends_s == pytest.approx(1.0 + delay_s)
