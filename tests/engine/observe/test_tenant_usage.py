"""What tenants take is counted by name for the largest, together for the others, in a bounded table."""

from __future__ import annotations

from kept_objects import list_kept

from agentcache.engine.observe.tenant_usage import MAX_SHOWN, TenantUsage
from agentcache.engine.views import TenantCounts, TurnView
from agentcache.tenants import OTHERS

TURN = TurnView(turn=0, arrived_s=0.0, prompt_tokens=10, diverged_at=None, waits={"pins": 2.0})


def fill(tenants: int) -> tuple[TenantUsage, dict[str, TenantCounts]]:
    shown: dict[str, TenantCounts] = {}
    usage = TenantUsage(shown)
    for number in range(tenants):
        usage.add_turn(f"t{number}", TURN, gpu_s=1.0)
    return usage, shown


def test_the_rest_is_counted_together() -> None:
    usage, shown = fill(MAX_SHOWN + 30)
    assert len(shown) == MAX_SHOWN + 1
    assert (shown["t0"].turns, shown["t0"].gpu_s, shown["t0"].wait_s) == (1, 1.0, 2.0)
    assert shown[OTHERS].turns == 30
    usage.end_job("t49", 7.0)
    assert (shown[OTHERS].jobs, shown[OTHERS].job_latency_s) == (1, 7.0)


def test_one_that_takes_much_more_gets_a_name() -> None:
    usage, shown = fill(MAX_SHOWN + 1)
    others = shown[OTHERS].turns
    usage.add_turn("t20", TURN, gpu_s=5.0)
    assert shown["t20"].gpu_s == 5.0, "what it took before stays among the others'"
    assert shown[OTHERS].turns == others
    assert len(shown) == MAX_SHOWN + 1


def test_ten_thousand_tenants_have_few_counts() -> None:
    usage, shown = fill(10_000)
    assert sum(counts.turns for counts in shown.values()) == 10_000
    assert len(list_kept(usage, str)) <= 1100
