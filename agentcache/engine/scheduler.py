"""vLLM's scheduler with the cache policy of agentcache inside: what happens to a turn, in order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agentcache.engine.vllm.compat import check_vllm

# On another vLLM an import below may fail, which would not tell why.
check_vllm()

from agentcache.config_reader import read_config
from agentcache.engine.blocks.checkpoints import keep_checkpoints
from agentcache.engine.blocks.references import check_references, count_in_tables
from agentcache.engine.jobs.job_finder import generates_text
from agentcache.engine.observe.lru_comparison import LruComparison
from agentcache.engine.parts import Observers
from agentcache.engine.policy_choice import choose_policy
from agentcache.engine.segments.scheduler import MultiSegmentScheduler, steer
from agentcache.engine.setup.parts import Build
from agentcache.engine.vllm.base import VllmConfig
from agentcache.engine.vllm.garbage import spare_core
from agentcache.engine.vllm.types import (
    EngineCoreOutputs,
    KVCacheBlock,
    KVCacheConfig,
    ModelRunnerOutput,
    Request,
    RequestStatus,
    SchedulerOutput,
)
from agentcache.policy.registry import Policy


class AgentScheduler(MultiSegmentScheduler):
    """Entered through vLLM's `scheduler_cls`, configured by `additional_config["agentcache"]`."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        *args: Any,
        clock: Callable[[], float] = time.monotonic,
        **kwargs: Any,
    ) -> None:
        """Make vLLM's scheduler and add our parts. `clock` gives seconds; a simulation has its own."""
        # It knows of this class.
        from agentcache.engine.rpc.core_calls import answer_front_ends

        answer_front_ends()
        self.clock = clock
        self.config = read_config(vllm_config.additional_config)
        policy = choose_policy(vllm_config, self.config)
        kept = keep_checkpoints(kv_cache_config) if policy.segments else kv_cache_config
        super().__init__(vllm_config, kept, *args, **kwargs)
        # The next scheduler of this engine core may have another policy.
        self.kv_cache_config = kv_cache_config
        self.observers = Observers()
        self.snapshot_guard = self.observers.guard("snapshot")
        self._use_policy(policy)
        spare_core()

    def _use_policy(self, policy: Policy) -> None:
        """Make the parts of the policy in force, and let them hear and decide."""
        parts = Build(self, self.config, policy, self.observers, self._note_evicted, self.now).make()
        self.evictor, self.block_queue, self.tracker = parts.evictor, parts.block_queue, parts.tracker
        self.checkpoints, self.tier, self.tier_obstacle = parts.checkpoints, parts.tier, parts.tier_obstacle
        self.frees, self.step_limit, self.hooks = parts.frees, parts.step_limit, parts.hooks
        self._stop_strings = parts.stop_strings
        if self.hooks.make_room or self.hooks.choose_victim:
            steer(self)

    @property
    def comparison(self) -> LruComparison | None:
        """Return the shadow LRU; None under vLLM's own policy, and where it could not tell."""
        return self.observers.find(LruComparison)

    def now(self) -> float:
        """Return the time in seconds."""
        return self.clock()

    def add_request(self, request: Request) -> None:
        """Queue a request, and book its arrival if it generates text."""
        if generates_text(request) and request.request_id not in self.requests:
            for note in self.hooks.arrived:
                note(request)
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule a step, after pins have ended and with a prefill that fits the decodes."""
        limit = self.step_limit.find(self.running, self.get_request_counts)
        self.max_num_scheduled_tokens = limit or self.max_num_scheduled_tokens
        for begin in self.hooks.step:
            begin()
        output = super().schedule(throttle_prefills)
        for new in output.scheduled_new_reqs:
            if not self.is_fill_request(new.req_id):
                request, filled = self.requests[new.req_id], self.filled_blocks_of(new.req_id)
                for note in self.hooks.admitted:
                    note(request, new.num_computed_tokens, filled)
        return output

    def _note_evicted(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note blocks that are evicted, and still have their hashes."""
        for note in self.hooks.evicted:
            note(blocks, self.taker)

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """Preempt a request, under priorities perhaps one that this very step scheduled, and that is not computed then.

        Its new blocks are registered by then: forget them, or others would hit what was never written.
        """
        managers = self.kv_cache_manager.coordinator.single_type_managers
        blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks
        for group, manager in zip(blocks, managers, strict=True):
            unwritten = group[request.num_computed_tokens // manager.block_size :]
            self.kv_cache_manager.block_pool.evict_blocks({block.block_id for block in unwritten if block.block_hash})
        super()._preempt_request(request, timestamp, drop_stale_output)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Give the step's tokens to its requests."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for note in self.hooks.stepped:
            note(outputs)
        return outputs

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Finish requests. A reply that ends at a stop string comes here as aborted, as if its client had gone."""
        if finished_status != RequestStatus.FINISHED_ABORTED:
            return super().finish_requests(request_ids, finished_status)
        stopped, others = self._stop_strings.divide(request_ids, self.requests)
        ended = super().finish_requests(stopped, RequestStatus.FINISHED_STOPPED)
        return ended + super().finish_requests(others, finished_status)

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Book the end of a request now, also where a connector uses its blocks for longer."""
        answer = super()._free_request(request, delay_free_blocks)
        if request.request_id in self.requests:
            self._note_end(request)
            self.frees.keep(request)
        return answer

    def _free_request_blocks(self, request: Request) -> None:
        if request.is_finished() and not self.frees.is_kept(request):
            self._note_end(request)
        is_used = not self._request_blocks_can_be_freed(request)
        self.frees.free(request, super()._free_request_blocks, is_used=is_used, step=self.sched_step_seq)

    def _note_end(self, request: Request) -> None:
        for note in self.hooks.ended:
            note(request)

    def _drain_deferred_frees(self) -> None:
        self.frees.drain(self.processed_step_seq)
        super()._drain_deferred_frees()  # type: ignore[no-untyped-call]

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the prefix cache, and forget what stood in it. Return False if it could not be emptied."""
        if not all(part.can_reset() for part in self.hooks.parts):
            return False
        succeeded = super().reset_prefix_cache(reset_running_requests)
        if succeeded:
            for reset in self.hooks.reset:
                reset()
        if reset_connector:
            # Apart: one that cannot forget now, as vLLM's own while it copies, leaves the GPU's cache empty even so.
            succeeded = super().reset_prefix_cache(reset_connector=True) and succeeded
        return succeeded

    def shutdown(self) -> None:
        """Save what was learned, and stop."""
        for close in self.hooks.close:
            close()
        super().shutdown()

    def check_integrity(self) -> None:
        """Raise IntegrityError when the free blocks, the requests' blocks and the reference counts disagree."""
        # vLLM's own connectors hold blocks while they copy them.
        others_hold = self.has_foreign_connector
        check_references(self.kv_cache_manager.block_pool.blocks, self._count_owned(), others_hold=others_hold)
        for part in self.hooks.parts:
            part.check_integrity()

    def _count_owned(self) -> Counter[int]:
        owned = count_in_tables(self.kv_cache_manager)
        owned.update(block.block_id for _, blocks in self.deferred_frees for block in blocks)
        for part in self.hooks.parts:
            owned.update(part.count_held())
        return owned
