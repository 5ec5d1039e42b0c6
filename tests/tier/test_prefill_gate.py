"""Prefills wait for copies of what they would take, and not for long."""

from __future__ import annotations

from hand_clock import Clock
from tiered_jobs import PROMPT, ask, make_tokens
from tiered_scheduler import TieredScheduler, make_tiered

from agentcache.engine.cpu_cache.storing import PrefillGate


def test_gate_is_closed_while_blocks_are_not_stored() -> None:
    clock, stored = Clock(), {"blocks": 8}
    gate = PrefillGate(lambda blocks: blocks <= stored["blocks"], clock)
    assert gate.is_open(8)
    assert not gate.is_open(9)
    stored["blocks"] = 9
    assert gate.is_open(9)


def test_nobody_waits_long_for_copies() -> None:
    clock = Clock()
    gate = PrefillGate(lambda blocks: blocks < 9, clock)
    assert not gate.is_open(9)
    clock.now_s += 0.09
    assert not gate.is_open(9)
    clock.now_s += 0.02
    assert gate.is_open(9)
    assert gate.is_open(9), "until they are stored"
    assert gate.is_open(8)
    assert not gate.is_open(9), "another wait"


def test_the_next_prefill_waits_as_long(tiny_model_path: str) -> None:
    """However long ago the last one began to wait, and whether or not its blocks were ever stored."""
    clock = Clock()
    tier = make_tiered(tiny_model_path).scheduler.tier
    tier.storing.gate = PrefillGate(lambda _: False, clock)

    def let_prefill(requests: int) -> bool:
        return tier.limit_prefill(512, 1, requests) > 0

    assert not let_prefill(2)
    clock.now_s += 0.11
    assert let_prefill(2)
    assert let_prefill(1), "nobody waits"
    clock.now_s += 500.0
    assert not let_prefill(2)
    clock.now_s += 0.11
    assert let_prefill(2)


def make_full(model_path: str) -> TieredScheduler:
    """One request decodes, and a turn has just left what the next prompt takes; no copy ends."""
    lone = make_tiered(model_path, blocks=24, engine={"max_num_batched_tokens": 512}, pins={"enabled": False})
    ask(lone, "runs/0", make_tokens(5, 20), tokens=100)
    ask(lone, "mine/0", PROMPT)
    lone.pace = 0.0
    while "mine/0" in lone.scheduler.requests:
        lone.step()
    ask(lone, "other/0", make_tokens(1, 250))
    return lone


def test_a_prefill_lets_decodes_pass_while_copies_are_made(tiny_model_path: str) -> None:
    lone = make_full(tiny_model_path)
    lone.pace = 1.0
    assert set(lone.step().scheduled) == {"runs/0"}
    assert lone.scheduler.step_limit.budget == 0
    assert "other/0" in lone.step().scheduled, "the copies have ended"
    assert not lone.scheduler.tier.counts.overwritten
    lone.run_until_idle()


def test_a_prefill_alone_waits_for_nothing(tiny_model_path: str) -> None:
    lone = make_full(tiny_model_path)
    lone.abort("runs/0")
    assert "other/0" in lone.step().scheduled
    lone.pace = 1.0
    lone.run_until_idle()
