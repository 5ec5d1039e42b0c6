"""vLLM's scheduler, asynchronous where vLLM is: one class, because `scheduler_cls` names one before that is decided."""

from __future__ import annotations

from agentcache.engine.vllm.types import AsyncScheduler, Request, Scheduler, SchedulerOutput


class VllmScheduler(AsyncScheduler):
    """The scheduler that vLLM itself would take: `AsyncScheduler`, or `Scheduler` where asynchronous scheduling is off.

    The two differ in these methods alone (`compat.py` checks that). An asynchronous scheduler counts on tokens before
    they are sampled; under pipeline parallelism without asynchronous scheduling the next batch would then hold
    requests whose last token is not known yet.
    """

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        if self.scheduler_config.async_scheduling:
            super()._update_after_schedule(scheduler_output)
        else:
            Scheduler._update_after_schedule(self, scheduler_output)

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        if self.scheduler_config.async_scheduling:
            return super()._update_request_with_output(request, new_token_ids, is_stale)
        return Scheduler._update_request_with_output(self, request, new_token_ids, is_stale)
