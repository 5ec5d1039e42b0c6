"""vLLM's scheduler with the cache policy of agentcache inside."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import chain
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from agentcache.config import AgentCacheConfig, is_on, read_config
from agentcache.engine.block_queue import BlockQueue, replace_queue
from agentcache.engine.chunking import prefill_budget
from agentcache.engine.compat import check_vllm
from agentcache.engine.evictor_inputs import build_inputs
from agentcache.engine.hit_map import KV_CACHE_GROUP
from agentcache.engine.job_queue import JobQueue
from agentcache.engine.job_tracker import JobTracker
from agentcache.engine.multi_segment import MultiSegmentScheduler, find_engine_obstacle
from agentcache.engine.segments import SegmentCosts
from agentcache.engine.stop_strings import StopStrings
from agentcache.engine.tracker_setup import TrackerSetup, is_of_a_job
from agentcache.errors import IntegrityError
from agentcache.policy.evictor import Evictor
from agentcache.policy.inputs import EvictorInputs
from agentcache.policy.registry import Policy, find_policy
from agentcache.policy.steering import Steering, Victim

logger = init_logger("vllm.agentcache")


class AgentScheduler(MultiSegmentScheduler):
    """Entered through vLLM's `scheduler_cls`, configured by `additional_config["agentcache"]`."""

    def __init__(self, *args: Any, clock: Callable[[], float] = time.monotonic, **kwargs: Any) -> None:
        """`clock` gives seconds; a simulation has its own."""
        check_vllm()
        super().__init__(*args, **kwargs)
        self.clock = clock
        self.config = read_config(self.vllm_config.additional_config)
        self.evictor: Evictor | None = None
        self.block_queue: BlockQueue | None = None
        self.tracker: JobTracker | None = None
        self._stop_strings = StopStrings(self.vllm_config.model_config)
        # Prompt tokens that the last step could have had; None while nothing limits them.
        self.prefill_budget: int | None = None
        self._victim: Victim = "last"
        self._use_policy(find_policy(self.config.policy), self.config)

    def _use_policy(self, policy: Policy, config: AgentCacheConfig) -> None:
        pool = self.kv_cache_manager.block_pool
        has_segments = is_on(config.segments.enabled, policy.segments)
        fills_gaps = has_segments and find_engine_obstacle(self) is None
        num_blocks, block_size = pool.num_gpu_blocks, self.block_size
        # Evictor, segments and runtime ask for the same; making them fits a cost model.
        get_inputs = cache(
            partial(build_inputs, self.vllm_config, config, num_blocks, block_size, fills_gaps=fills_gaps)
        )
        if policy.make_evictor is not None:
            self.evictor = policy.make_evictor(get_inputs)
            self._steer(policy.steering, get_inputs)
            is_told = self.tracker is not None
            self.block_queue = replace_queue(pool, self.evictor, self.now, notes_reuse=not is_told)
        if has_segments:
            segments = config.segments
            self.fill_gaps(lambda: SegmentCosts(get_inputs().loss, segments.row_s, self.block_size), segments.max_gaps)
        if self._victim != "last":
            self._choose_victims()
        # Measurements change it.
        self.chunking = config.chunking if is_on(config.chunking.enabled, policy.chunking) else None
        self._step_tokens = self.max_num_scheduled_tokens

    def _steer(self, steering: Steering | None, get_inputs: Callable[[], EvictorInputs]) -> None:
        assert self.evictor is not None
        if steering is None:
            return
        setup = TrackerSetup(
            vllm_config=self.vllm_config,
            config=self.config,
            steering=steering,
            inputs=get_inputs(),
            block_size=self.block_size,
            hash_block_size=self.hash_block_size,
            find_hits=self._find_hits,
            count_requests=self.get_request_counts,
            clock=self.now,
        )
        self.evictor, self.tracker = setup.make(self.evictor)
        if is_on(self.config.order.enabled, steering.order is not None):
            if self.policy is not SchedulingPolicy.FCFS:
                logger.warning("Requests keep the order of --scheduling-policy %s.", self.policy.value)
                return
            self._victim = steering.victim
            self.waiting = JobQueue(self.tracker.place_of, self.tracker.patience_s, self.now)

    def _find_hits(self, request: Request) -> list[KVCacheBlock]:
        """The cached blocks that the request would reuse if it were admitted now."""
        pool, hits = self.kv_cache_manager.block_pool, list[KVCacheBlock]()
        if request.skip_reading_prefix_cache:
            return hits
        for block_hash in request.block_hashes:
            found = pool.get_cached_block(block_hash, [KV_CACHE_GROUP])
            if found:
                hits.append(found[0])
            elif self.gap_filler is None:
                break
        return hits

    def now(self) -> float:
        """In seconds."""
        return self.clock()

    def add_request(self, request: Request) -> None:
        if self.tracker is not None and is_of_a_job(request) and request.request_id not in self.requests:
            self.tracker.arrived(request)
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        if self.chunking is not None:
            decodes = sum(not request.is_prefill_chunk for request in self.running)
            self.prefill_budget = prefill_budget(self.chunking, decodes, self._step_tokens)
            self.max_num_scheduled_tokens = decodes + self.prefill_budget
        if self.tracker is None:
            return super().schedule(throttle_prefills)
        self.tracker.step()
        output = super().schedule(throttle_prefills)
        for admitted in output.scheduled_new_reqs:
            self.tracker.admitted(self.requests[admitted.req_id])
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        by_client = super().update_from_output(scheduler_output, model_runner_output)
        if self.tracker is not None and self.tracker.awaits_tokens:
            for outputs in by_client.values():
                for output in outputs.outputs:
                    self.tracker.got_tokens(output.request_id)
        return by_client

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """A reply that ends at a stop string comes here as aborted, as if its client had gone."""
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

    def _choose_victims(self) -> None:
        """vLLM preempts the last of the batch for one that finds no blocks: put the policy's choice there then.

        Not before: the batch is served in its order, and a long prefill in front of others would leave them no tokens.
        """
        manager = self.kv_cache_manager
        allocate = manager.allocate_slots

        def allocate_or_choose(request: Request, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
            blocks = allocate(request, *args, **kwargs)
            if blocks is None and request.status == RequestStatus.RUNNING:
                self._bring_victim_last(request)
            return blocks

        manager.allocate_slots = allocate_or_choose  # type: ignore[method-assign]

    def _bring_victim_last(self, asking: Request) -> None:
        """Of those behind the request that asks: the others have their tokens of this step already.

        running:  scheduled … | asking | behind …   ->   scheduled … | asking | behind … without victim | victim
        """
        assert self.tracker is not None
        behind = range(self.running.index(asking) + 1, len(self.running))
        if not behind:
            return
        if self._victim == "cheapest":
            # The cost of a prefill grows with its length.
            place = min(behind, key=lambda index: self.running[index].num_computed_tokens)
        else:
            place_of = self.tracker.place_of
            place = max(behind, key=lambda index: place_of(self.running[index]).time_s)
        self.running.append(self.running.pop(place))

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        # What runs frees blocks some day, so nobody waits for ever.
        if self.tracker is not None and self.running:
            free_blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
            if self.tracker.waits_for_pins(request, free_blocks):
                return False
        return super()._handle_blocked_waiting_request(request)

    def _free_request_blocks(self, request: Request) -> None:
        if self.tracker is None or self.block_queue is None or self.is_fill_row(request.request_id):
            super()._free_request_blocks(request)
            return
        blocks = chain.from_iterable(self.kv_cache_manager.get_blocks(request.request_id).blocks)
        with self.tracker.parting(request, list(blocks)) as fate:
            queue = self.block_queue
            queue.factor, queue.end_class, queue.job = fate.factor, fate.end_class, fate.job
            super()._free_request_blocks(request)
            queue.factor, queue.end_class, queue.job = 1.0, 0, 0

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        succeeded = super().reset_prefix_cache(reset_running_requests, reset_connector)
        if succeeded and self.block_queue is not None:
            self.block_queue.forget_kv()
        if succeeded and self.tracker is not None:
            self.tracker.reset()
        return succeeded

    def shutdown(self) -> None:
        if self.tracker is not None:
            self.tracker.close()
        super().shutdown()

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        """Under priorities vLLM may preempt what it has scheduled in this very step, and so will not be computed.

        Its new blocks are registered by then: forget them, or others would hit what nobody has written.
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
        if self.gap_filler is not None:
            self._check_references(self.gap_filler.count_held())
        if self.tracker is not None:
            self.tracker.check_integrity()

    def _check_references(self, held: Counter[int]) -> None:
        (manager,) = self.kv_cache_manager.coordinator.single_type_managers
        owned = Counter(block.block_id for blocks in manager.req_to_blocks.values() for block in blocks)
        expected = owned + held
        wrong = [
            block.block_id
            for block in self.kv_cache_manager.block_pool.blocks
            if not block.is_null and block.ref_cnt != expected[block.block_id]
        ]
        if wrong:
            raise IntegrityError(f"blocks with another reference count than their owners give: {wrong[:20]}")
