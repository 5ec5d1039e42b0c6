"""Which running request gives up its blocks when another finds none."""

from __future__ import annotations

from collections.abc import Callable

from agentcache.engine.order.job_queue import QueuePriority
from agentcache.engine.vllm.types import Request
from agentcache.policy.runtime_policy import Victim


def bring_victim_last(
    running: list[Request], asking: Request, victim: Victim, priority_of: Callable[[Request], QueuePriority]
) -> None:
    """Move a victim from behind the request that asks to the end: vLLM preempts the last.

    The others have this step's tokens already.

    running:  scheduled … | asking | behind …   ->   scheduled … | asking | behind … without victim | victim
    """
    behind = range(running.index(asking) + 1, len(running))
    if not behind:
        return
    if victim == "cheapest":
        # The cost of a prefill grows with its length.
        place = min(behind, key=lambda index: running[index].num_computed_tokens)
    else:
        place = max(behind, key=lambda index: priority_of(running[index]).time_s)
    running.append(running.pop(place))
