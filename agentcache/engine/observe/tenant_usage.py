"""Counts what tenants take: the largest by name, the rest together, so that metrics have few labels."""

from __future__ import annotations

from collections import OrderedDict

from agentcache.engine.views import TenantCounts, TurnView
from agentcache.tenants import OTHERS

MAX_SHOWN = 20
# So many are told apart, the latest: the rest begin anew when they are back.
_MAX_KNOWN = 1000
# A tenant takes another's place once it has taken so many times as much: counts of one that is shown only grow.
_TAKES_PLACE = 2.0


class TenantUsage:
    """Fills `shown`. One that comes to be shown begins at 0; what it took before is among the others' for good."""

    def __init__(self, shown: dict[str, TenantCounts]) -> None:
        self._shown = shown
        self._gpu_s: OrderedDict[str, float] = OrderedDict()

    def add_turn(self, tenant: str, turn: TurnView, gpu_s: float) -> None:
        """Count a request that has ended, and the seconds of GPUs that it took."""
        self._gpu_s[tenant] = self._gpu_s.pop(tenant, 0.0) + gpu_s
        if len(self._gpu_s) > _MAX_KNOWN:
            self._gpu_s.popitem(last=False)
        counts = self._find(tenant)
        counts.turns += 1
        counts.gpu_s += gpu_s
        counts.wait_s += sum(turn.waits.values())

    def end_job(self, tenant: str, latency_s: float) -> None:
        """Count a job that is over."""
        counts = self._find(tenant)
        counts.jobs += 1
        counts.job_latency_s += latency_s

    def _find(self, tenant: str) -> TenantCounts:
        shown, taken = self._shown, self._gpu_s
        if tenant not in shown:
            named = [each for each in shown if each != OTHERS]
            if len(named) >= MAX_SHOWN:
                least = min(named, key=lambda each: shown[each].gpu_s)
                if taken.get(tenant, 0.0) <= _TAKES_PLACE * shown[least].gpu_s:
                    return shown.setdefault(OTHERS, TenantCounts())
                del shown[least]
            shown[tenant] = TenantCounts()
        return shown[tenant]
