"""vLLM's scheduler with the cache policy of agentcache inside."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from agentcache.engine.vllm.compat import check_vllm

# On another vLLM an import below may fail, which would not tell why.
check_vllm()

from agentcache._evictor import Evictor, FreeContext
from agentcache.config import AgentCacheConfig, is_on
from agentcache.config_reader import read_config
from agentcache.engine.banner import speaks_for_server, write_banner
from agentcache.engine.blocks.block_queue import BlockQueue, replace_queue
from agentcache.engine.blocks.checkpoints import SUPERSEDED, Checkpoints
from agentcache.engine.blocks.late_frees import LateFrees, Part
from agentcache.engine.blocks.lru_comparison import LruComparison, make_comparison
from agentcache.engine.blocks.references import check_references, count_in_tables
from agentcache.engine.constants import ANSWER_MARK
from agentcache.engine.jobs.setup import generates_text, is_of_a_job
from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.observers import Observers
from agentcache.engine.order.chunking import prefill_budget
from agentcache.engine.order.job_queue import JobQueue
from agentcache.engine.order.preemption import bring_victim_last
from agentcache.engine.policy_choice import choose_policy, find_cost_obstacle
from agentcache.engine.record.recorder import make_recorder
from agentcache.engine.replies.parser_choice import make_reader
from agentcache.engine.replies.stop_strings import StopStrings
from agentcache.engine.segments.cached_blocks import CachedBlockMap
from agentcache.engine.segments.scheduler import MultiSegmentScheduler, find_engine_obstacle
from agentcache.engine.setup import PolicySetup
from agentcache.engine.tier.setup import find_tier
from agentcache.engine.tier.tier import Tier
from agentcache.engine.vllm.base import init_logger
from agentcache.engine.vllm.garbage import spare_cores
from agentcache.engine.vllm.patches import wrap_allocate_slots
from agentcache.engine.vllm.types import (
    EngineCoreOutputs,
    KVCacheBlock,
    ModelRunnerOutput,
    Request,
    RequestStatus,
    SchedulerOutput,
    SchedulingPolicy,
)
from agentcache.engine.waits import WaitReason
from agentcache.policy.registry import Policy
from agentcache.policy.runtime_policy import RuntimePolicy, Victim

logger = init_logger("vllm.agentcache")


class AgentScheduler(MultiSegmentScheduler):
    """Entered through vLLM's `scheduler_cls`, configured by `additional_config["agentcache"]`."""

    def __init__(self, *args: Any, clock: Callable[[], float] = time.monotonic, **kwargs: Any) -> None:
        """Make vLLM's scheduler and add our parts. `clock` gives seconds; a simulation has its own."""
        # It knows of this class.
        from agentcache.engine.rpc.core_calls import answer_front_ends

        answer_front_ends()
        spare_cores()
        super().__init__(*args, **kwargs)
        self.clock = clock
        self.config = read_config(self.vllm_config.additional_config)
        self.evictor: Evictor | None = None
        self.block_queue: BlockQueue | None = None
        self.tracker: JobTracker | None = None
        # None where every block's end is a checkpoint, and for policies that evict by age.
        self.checkpoints: Checkpoints | None = None
        self.tier: Tier | None = None
        self.observers = Observers()
        self.snapshot_guard = self.observers.guard("snapshot")
        self._stop_strings = StopStrings(self.vllm_config.model_config)
        # Prompt tokens that the last step could have had; None while nothing limits them.
        self.prefill_budget: int | None = None
        self._victim: Victim = "last"
        # The client's request for which blocks are allocated.
        self._taker = ""
        # None under vLLM's own policy.
        self.late_frees: LateFrees | None = None
        self._use_policy(choose_policy(self.vllm_config, self.config), self.config)
        self._record()

    def _record(self) -> None:
        if self.config.record.file is None:
            return
        reader = self.tracker.tool_reader if self.tracker else make_reader(self.vllm_config, self.config.runtime)
        recorder = make_recorder(
            self.vllm_config,
            self.config,
            hash_block_size=self.hash_block_size,
            tool_reader=reader,
            reads_later=self.tracker is None,
            clock=self.now,
        )
        self.observers.watch("recording", recorder)

    @property
    def comparison(self) -> LruComparison | None:
        """Return the shadow LRU; None under vLLM's own policy, and where it could not tell."""
        return self.observers.find(LruComparison)

    def _use_policy(self, policy: Policy, config: AgentCacheConfig) -> None:
        has_segments = is_on(config.segments.enabled, policy.segments)
        tier, self.tier_obstacle = find_tier(self, config, policy)
        self.steers_tier = tier is not None
        obstacle = find_engine_obstacle(self) if has_segments else None
        fills_gaps = has_segments and obstacle is None
        setup = PolicySetup(self, config, policy, tier, fills_gaps=fills_gaps, observers=self.observers, clock=self.now)
        self._use_evictor(setup)
        if has_segments:
            self.fill_gaps(lambda: setup.costs, config.tuning.max_gaps)
        facts = {"fills_gaps": fills_gaps, "steers_tier": self.steers_tier}
        banner = write_banner(
            self.vllm_config, config, policy, **facts, obstacle=obstacle, tier_obstacle=self.tier_obstacle
        )
        if speaks_for_server(self.vllm_config.parallel_config):
            logger.info(banner)
        if self.steers_tier and self.evictor is not None:
            assert self.block_queue is not None
            self.tier = setup.make_tier(self.block_queue)
        if self.tracker is not None:
            self.observers.watch("misses", setup.make_misses(self.tracker, self.tier))
        # What a connector of vLLM's brings, it would bring under LRU as well, but not the same.
        can_compare = self.evictor is not None and (self.connector is None or self.tier is not None)
        if can_compare and find_cost_obstacle(self.vllm_config) is None:
            comparison = make_comparison(self, lambda: setup.costs)
            if comparison is not None:
                self.observers.watch("lru_comparison", comparison)
        # Another victim than vLLM's comes with a tracker.
        if self.gap_filler is not None or self.checkpoints is not None or self.tracker is not None:
            wrap_allocate_slots(self.kv_cache_manager, self._note_taker, self._make_room, self._choose_victim)
        # Measurements change it.
        self.chunking = config.tuning if is_on(config.chunking.enabled, policy.chunking) else None
        self._step_tokens = self.max_num_scheduled_tokens

    def _use_evictor(self, setup: PolicySetup) -> None:
        """Let the policy choose what goes from the GPU's cache."""
        if (evictor := setup.make_evictor()) is None:
            return
        if (runtime := setup.runtime) is not None:
            evictor, self.tracker = setup.make_tracker(evictor, runtime)
            self._order_jobs(runtime, self.tracker)
        self.evictor = evictor
        pool = self.kv_cache_manager.block_pool
        self.block_queue = replace_queue(pool, evictor, self.now, notes_reuse=self.tracker is None)
        renew = self.tracker.on_late_free if self.tracker is not None else lambda context: context
        self.late_frees = LateFrees(pool, self.block_queue, renew)
        if self.tracker is not None:
            self.block_queue.on_taken = self._note_taken
        self.checkpoints = setup.make_checkpoints(self.block_queue)

    def _order_jobs(self, runtime: RuntimePolicy, tracker: JobTracker) -> None:
        if is_on(self.config.order.enabled, runtime.order is not None):
            if self.policy is not SchedulingPolicy.FCFS:
                logger.warning("Requests keep the order of --scheduling-policy %s.", self.policy.value)
                return
            self._victim = runtime.victim
            self.waiting = JobQueue(tracker.priority_of, lambda: tracker.patience_s, self.now)

    def now(self) -> float:
        """Return the time in seconds."""
        return self.clock()

    def add_request(self, request: Request) -> None:
        """Add a request, and book its arrival if it is a job's."""
        if generates_text(request) and request.request_id not in self.requests:
            if self.tracker is not None and is_of_a_job(request):
                self.tracker.arrived(request)
            self.observers.arrived(request, None if self.tracker is None else self.tracker.job_of(request))
        super().add_request(request)

    def _limit_prefill(self) -> None:
        if self.chunking is None:
            return
        decodes = sum(not request.is_prefill_chunk for request in self.running)
        budget = prefill_budget(self.chunking, decodes, self._step_tokens)
        if self.tier is not None:
            budget = self.tier.limit_prefill(budget, decodes=decodes, requests=sum(self.get_request_counts()))
        self.prefill_budget = budget
        self.max_num_scheduled_tokens = decodes + budget

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule a step, after pins have ended and with a prefill that fits the decodes."""
        self._limit_prefill()
        if self.tracker is not None:
            self.tracker.step()
        output = super().schedule(throttle_prefills)
        filled = self.gap_filler.filled if self.gap_filler is not None else {}
        for admitted in output.scheduled_new_reqs:
            request = self.requests[admitted.req_id]
            if self.is_fill_request(admitted.req_id):
                continue
            if self.checkpoints is not None and (self.tracker is None or self.tracker.begins_job(request)):
                self.checkpoints.begin(request, admitted.num_computed_tokens)
            if self.checkpoints is not None and self.tracker is not None:
                self.checkpoints.end_at(request, self.tracker.find_return(request))
            self.observers.admitted(request, filled.get(admitted.req_id, ()))
            if self.tracker is not None:
                self.tracker.admitted(request)
            if self.tier is not None:
                self.tier.admitted(request)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Give the step's tokens to its requests, and tell the tracker of first ones."""
        by_client = super().update_from_output(scheduler_output, model_runner_output)

        def name_requests() -> Iterator[str]:
            return (output.request_id for outputs in by_client.values() for output in outputs.outputs)

        self.observers.got_tokens(name_requests)
        if self.tracker is None:
            return by_client
        if self.tracker.awaits_tokens:
            self.tracker.stats_guard.tell(self.tracker.got_tokens, name_requests())
        if answered := self.tracker.take_answered():
            _mark_answers(by_client.values(), answered)
        return by_client

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Finish requests. A reply that ends at a stop string comes here as aborted, as if its client had gone."""
        if self.tracker is None or finished_status != RequestStatus.FINISHED_ABORTED:
            return super().finish_requests(request_ids, finished_status)
        names = (
            [request_ids]
            if isinstance(request_ids, str)
            else list(self.requests if request_ids is None else request_ids)
        )
        stopped = [name for name in names if name in self.requests and self._stop_strings.ended(self.requests[name])]
        ended = super().finish_requests(stopped, RequestStatus.FINISHED_STOPPED)
        return ended + super().finish_requests(names, finished_status)

    def _note_taken(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Note blocks that are evicted, and still have their hashes."""
        self.observers.evicted(blocks, self._taker)
        if self.tier is not None:
            self.tier.storing.note_taken(blocks)

    def _note_taker(self, request: Request) -> None:
        """Note for whom blocks are evicted if any are."""
        self._taker = self.client_request_of(request).request_id

    def _make_room(self, request: Request) -> bool:
        """Give a request that finds no blocks those held for others, before anything is preempted for it."""
        if self.checkpoints is not None and self.checkpoints.release_holds():
            return True
        if (filler := self.gap_filler) is None:
            return False
        # What runs makes room some day; nothing else does.
        return filler.release_holds(keep_for=request) or (not self.running and filler.release_needless(request))

    def _choose_victim(self, request: Request) -> None:
        """Put the policy's victim last in the batch when a request finds no blocks: vLLM then preempts the last.

        Not before: the batch is served in its order, and a long prefill in front of others would leave them no tokens.
        """
        if self._victim != "last" and request.status == RequestStatus.RUNNING:
            assert self.tracker is not None
            bring_victim_last(self.running, request, self._victim, self.tracker.priority_of)

    def find_wait(self, request: Request) -> WaitReason | None:
        """Find why the request must wait, by the order of jobs, and none of its gaps may be filled."""
        # Running requests free blocks some day, so no request waits for ever.
        if self.tracker is None or not self.running:
            return None
        manager = self.kv_cache_manager
        own = max(map(len, manager.get_blocks(request.request_id).blocks), default=0)
        return self.tracker.find_wait(request, own + manager.block_pool.get_num_free_blocks())

    def awaits_tier(self, request: Request, on_gpu: CachedBlockMap) -> bool:
        """Tell whether the request must wait for blocks of the CPU cache, by what the GPU has."""
        return self.tier is not None and self.tier.awaits(request, on_gpu)

    def count_elsewhere(self, request: Request) -> int:
        """Count the blocks of the request that the CPU cache alone has."""
        return 0 if self.tier is None else self.tier.fetching.count_here(request)

    def note_wait(self, request: Request, reason: WaitReason) -> None:
        """Note what holds a request in this step."""
        if self.tracker is not None:
            self.tracker.note_wait(request, reason)

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Book the end of a request now, also where a connector uses its blocks for longer."""
        answer = super()._free_request(request, delay_free_blocks)
        if request.request_id in self.requests:
            self.observers.ended(request)
            if self.late_frees is not None:
                self.late_frees.keep(request.request_id, self._divide(request))
        return answer

    def _free_request_blocks(self, request: Request) -> None:
        late = self.late_frees
        parts = None if late is None else late.take(request.request_id)
        if parts is None and request.is_finished():
            self.observers.ended(request)
        if late is None or (self.checkpoints is None and self.is_fill_request(request.request_id)):
            super()._free_request_blocks(request)
            return
        can_be_freed = self._request_blocks_can_be_freed(request)
        if parts is None and self.checkpoints is None and can_be_freed:
            assert self.block_queue is not None
            with self.block_queue.free_with(self.find_context(request, self._blocks_of(request))):
                super()._free_request_blocks(request)
            return
        parts = self._divide(request) if parts is None else parts
        self.kv_cache_manager.pop_blocks_for_free(request)
        for part in parts:
            if can_be_freed:
                late.free(part)
            else:
                late.defer(part, self.sched_step_seq)

    def _divide(self, request: Request) -> list[Part]:
        """Divide what a request leaves by what the evictor is to know of it; a turn that ends is booked."""
        blocks = self._blocks_of(request)
        if self.is_fill_request(request.request_id):
            # What the gap was filled for is held for its parent: the rest are windows on the way, and copies.
            return [Part(blocks[::-1], SUPERSEDED)]
        if self.checkpoints is None:
            return [Part(blocks[::-1], self.find_context(request, blocks))]
        superseded, begins, kept = self.checkpoints.leave(request, blocks)
        # A pin keeps the beginning with the rest.
        context = self.find_context(request, kept + begins)
        return [Part(superseded, SUPERSEDED), Part(begins, self.checkpoints.beginning), Part(kept, context)]

    def _blocks_of(self, request: Request) -> list[KVCacheBlock]:
        return list(chain.from_iterable(self.kv_cache_manager.get_blocks(request.request_id).blocks))

    def find_context(self, request: Request, blocks: list[KVCacheBlock]) -> FreeContext:
        """Find what the evictor is to know of blocks that the request is about to free; a turn that ends is booked."""
        prefix_only = self.gap_filler is not None and not self.fills_gaps_of(request)
        whole = self.checkpoints is not None and not self.fills_gaps_of(request)
        if self.tracker is None:
            return FreeContext(prefix_only=prefix_only, whole=whole)
        context = self.tracker.on_free(request, blocks, prefix_only=prefix_only, whole=whole)
        if self.tier is not None:
            self.tier.storing.note_use(blocks, context)
        return context

    def _drain_deferred_frees(self) -> None:
        if self.late_frees is not None:
            self.late_frees.drain(self.processed_step_seq)
        super()._drain_deferred_frees()  # type: ignore[no-untyped-call]

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the prefix cache, and forget what stood in it. Return False if it could not be emptied."""
        if self.tier is not None and self.tier.is_fetching:
            logger.warning("The prefix cache is not reset: blocks are on their way from the CPU cache.")
            return False
        succeeded = super().reset_prefix_cache(reset_running_requests, reset_connector)
        if succeeded and self.block_queue is not None:
            self.block_queue.forget_kv()
        if succeeded and self.tracker is not None:
            self.tracker.reset()
        if succeeded:
            self.observers.reset()
        return succeeded

    def shutdown(self) -> None:
        """Save what was learned, and stop."""
        if self.tracker is not None:
            self.tracker.close()
        self.observers.close()
        super().shutdown()

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """Preempt a request, under priorities perhaps one that this very step scheduled, and that is not computed then.

        Its new blocks are registered by then: forget them, or others would hit what was never written.
        """
        managers = self.kv_cache_manager.coordinator.single_type_managers
        blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks
        for group, manager in zip(blocks, managers, strict=True):
            unwritten = group[request.num_computed_tokens // manager.block_size :]
            self.kv_cache_manager.evict_blocks({block.block_id for block in unwritten if block.block_hash is not None})
        super()._preempt_request(request, timestamp, drop_stale_output)

    def check_integrity(self) -> None:
        """Raise IntegrityError when the free blocks, the requests' blocks and the reference counts disagree."""
        if self.block_queue is not None:
            self.block_queue.check_integrity()
        # vLLM's own connectors hold blocks while they copy them.
        others_hold = self.connector is not None and self.tier is None
        check_references(self.kv_cache_manager.block_pool.blocks, self._count_owned(), others_hold=others_hold)
        self.observers.check_integrity()
        for part in (self.tier, self.tracker):
            if part is not None:
                part.check_integrity()

    def _count_owned(self) -> Counter[int]:
        owned = count_in_tables(self.kv_cache_manager)
        owned.update(block.block_id for _, blocks in self.deferred_frees for block in blocks)
        holds = None if self.gap_filler is None else self.gap_filler.holds
        for holder in (holds, self.tier, self.checkpoints):
            if holder is not None:
                owned.update(holder.count_held())
        if self.late_frees is not None:
            owned += self.late_frees.count_held({name: self._blocks_of(each) for name, each in self.requests.items()})
        return owned


def _mark_answers(all_outputs: Iterable[EngineCoreOutputs], answered: set[str]) -> None:
    """Tell data-parallel clients, who alone get finished requests, which of these were final answers."""
    for outputs in all_outputs:
        if outputs.finished_requests:
            outputs.finished_requests |= {name + ANSWER_MARK for name in answered & outputs.finished_requests}
