"""Chooses the running request to preempt when another finds no blocks."""

from __future__ import annotations

from collections.abc import Callable

from agentcache.engine.parts import Part
from agentcache.engine.vllm.types import Request, RequestStatus
from agentcache.policy.runtime_policy import Victim


class Preemption(Part):
    """Puts the policy's victim last in the batch when a request finds no blocks: vLLM then preempts the last.

    Not before: the batch is served in its order, and a long prefill in front of others would leave them no tokens.
    """

    def __init__(self, victim: Victim, get_job_time: Callable[[Request], float]) -> None:
        self._victim = victim
        self._get_job_time = get_job_time

    def choose_victim(self, request: Request, running: list[Request]) -> None:
        """Move a victim from behind the request, which still finds no blocks, to the end.

        The others have this step's tokens already.

        running:  scheduled … | request | behind …   ->   scheduled … | request | behind … without victim | victim
        """
        if self._victim == "last" or request.status != RequestStatus.RUNNING:
            return
        behind = range(running.index(request) + 1, len(running))
        if not behind:
            return
        if self._victim == "cheapest":
            # The cost of a prefill grows with its length.
            place = min(behind, key=lambda index: running[index].num_computed_tokens)
        else:
            place = max(behind, key=lambda index: self._get_job_time(running[index]))
        running.append(running.pop(place))
