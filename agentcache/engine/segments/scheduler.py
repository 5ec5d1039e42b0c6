"""vLLM's scheduler with multi-segment reuse: fill requests of our own compute the gaps in front of cached blocks.

Beside it is the KV cache manager that it steers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any

from agentcache.engine.cached_blocks import CachedBlockMap
from agentcache.engine.parts import Hooks
from agentcache.engine.segments.fill_request import FillingQueue, find_obstacle
from agentcache.engine.segments.gap_filler import GapFiller
from agentcache.engine.vllm.base import init_logger
from agentcache.engine.vllm.patches import replace
from agentcache.engine.vllm.scheduler import VllmScheduler
from agentcache.engine.vllm.types import (
    EngineCoreOutputs,
    KVCacheBlock,
    KVCacheBlocks,
    KVCacheManager,
    ModelRunnerOutput,
    Request,
    RequestStatus,
    SchedulerOutput,
    SchedulerStats,
)
from agentcache.engine.waits import WaitReason

logger = init_logger("vllm.agentcache")

# What vLLM itself has requests wait for.
_BLOCKED: dict[RequestStatus, WaitReason] = {
    RequestStatus.WAITING_FOR_REMOTE_KVS: "fetch",
    RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR: "grammar",
}


class MultiSegmentScheduler(VllmScheduler):
    """Stock vLLM until `fill_gaps` is called, and `hooks` has parts that decide."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gap_filler: GapFiller | None = None
        self.hooks = Hooks(())
        self.taker = ""
        """The client's request for which blocks are allocated."""
        # Whether the KV connector is ours, and brings blocks before requests are admitted.
        self.steers_tier = False

    def fill_gaps(self, filler: GapFiller) -> None:
        """Reuse cached blocks behind gaps from now on."""
        self.gap_filler = filler
        self.waiting = FillingQueue(self.waiting, filler.next_row, filler.rows)
        if self.enable_kv_cache_events:
            logger.warning(
                "KV events are on and gaps are filled: of a prompt the first blocks are evicted before the last, so a "
                "router that matches prefixes by these events takes this engine for cold. With such a router set "
                "--agentcache segments.enabled=false (docs/routers.md)."
            )

    def fills_gaps_of(self, request: Request) -> bool:
        """Tell whether a later request with the same tokens can reuse cached blocks of this one behind a gap."""
        return self.gap_filler is not None and find_obstacle(request) is None

    def find_hits(self, request: Request) -> list[KVCacheBlock]:
        """Find the cached blocks that the request would reuse if it were admitted now."""
        if request.skip_reading_prefix_cache or not self.kv_cache_manager.enable_caching:
            return []
        if not self.fills_gaps_of(request):
            find = self.kv_cache_manager.coordinator.find_longest_cache_hit
            groups, _, _ = find(request.block_hashes, request.num_tokens - 1)
            return [block for block in chain.from_iterable(groups) if not block.is_null]
        assert self.gap_filler is not None
        return self.gap_filler.finder.find_reusable(request)

    @property
    def has_foreign_connector(self) -> bool:
        """Tell whether a KV connector that is not ours brings blocks."""
        return self.connector is not None and not self.steers_tier

    def is_fill_request(self, request_id: str) -> bool:
        """Tell whether this is a running request of our own, of which no client knows."""
        return self.gap_filler is not None and request_id in self.gap_filler.rows

    def filled_blocks_of(self, request_id: str) -> Collection[int]:
        """Return the blocks, by index, that fill requests have computed for a request that this step has admitted."""
        return () if self.gap_filler is None else self.gap_filler.filled.get(request_id, ())

    def client_request_of(self, request: Request) -> Request:
        """Return the client's request that a fill request is for; a client's own is its own."""
        row = self.gap_filler.rows.get(request.request_id) if self.gap_filler is not None else None
        return request if row is None else row.parent.request

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule a step, and hold what its fill requests compute."""
        if self.gap_filler is not None:
            self.gap_filler.filled.clear()
        output = super().schedule(throttle_prefills)
        if (filler := self.gap_filler) is not None:
            filler.holds.ahead.clear()
            filler.hold_new_blocks()
            # Preempted ones: their parents plan anew.
            self._abort(row.request.request_id for row in filler.take_ended())
            self._forget(filler.find_finished_parents())
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Give the step's tokens to its requests; those of fill requests reach no client."""
        by_client = super().update_from_output(scheduler_output, model_runner_output)
        if self.gap_filler is not None and (ended := self.gap_filler.take_ended()):
            _drop_outputs(by_client, {row.request.request_id for row in ended})
        return by_client

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Finish requests, and abort the fill requests that they alone needed. Return the clients' requests."""
        finished = super().finish_requests(request_ids, finished_status)
        if self.gap_filler is None:
            return finished
        clients = [request for request in finished if not self.is_fill_request(request.request_id)]
        self.gap_filler.take_ended()
        self._forget(clients)
        return clients

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Empty the prefix cache, without the blocks that are held. Return False if it could not be emptied."""
        filler = self.gap_filler
        if filler is None:
            return super().reset_prefix_cache(reset_running_requests, reset_connector)
        # vLLM does not know of held blocks, and they must not stand in the way.
        filler.release_holds()
        succeeded = super().reset_prefix_cache(reset_running_requests, reset_connector)
        if succeeded:
            # First: what the rows below free is looked for in the new map.
            filler.begin_anew()
        self._abort(row.request.request_id for row in filler.take_ended())
        return succeeded

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """Make vLLM's stats, which do not count fill requests."""
        stats = super().make_stats(*args, **kwargs)
        if stats is not None and self.gap_filler is not None:
            stats.num_running_reqs -= self.gap_filler.count_running()
        return stats

    def find_wait(self, request: Request) -> WaitReason | None:
        """Find why the request must wait for others' sake, and none of its gaps may be filled."""
        # Running requests free blocks some day, so no request waits for ever.
        if not self.running or not self.hooks.find_wait:
            return None
        manager = self.kv_cache_manager
        own = max(map(len, manager.get_blocks(request.request_id).blocks), default=0)
        available = own + manager.block_pool.get_num_free_blocks()
        return next(filter(None, (find(request, available) for find in self.hooks.find_wait)), None)

    def awaits_blocks(self, request: Request, on_gpu: CachedBlockMap) -> bool:
        """Tell whether the request must wait for blocks of the CPU cache, by what the GPU has."""
        return any(awaits(request, on_gpu) for awaits in self.hooks.awaits_blocks)

    def count_elsewhere(self, request: Request) -> int:
        """Count the request's blocks that are in another cache alone."""
        return sum(count(request) for count in self.hooks.count_elsewhere)

    def limit_prefill(self, tokens: int, decodes: int, requests: int) -> int:
        """Limit the prompt tokens of a step in which so many of all requests decode; 0 for decodes alone."""
        return min((limit(tokens, decodes, requests) for limit in self.hooks.limit_prefill), default=tokens)

    def count_running(self) -> int:
        """Count the requests that run."""
        return self.get_request_counts()[0]

    def count_waiting(self) -> int:
        """Count those that wait."""
        return self.get_request_counts()[1]

    def note_wait(self, request: Request, reason: WaitReason) -> None:
        """Note what holds a request that this step has looked at."""
        for note in self.hooks.note_wait:
            note(request, reason)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        reason, blocked = self._find_own_wait(request), _BLOCKED.get(request.status)
        is_ready = reason is None and super()._handle_blocked_waiting_request(request)
        if reason is None and not is_ready:
            reason = blocked
        self.note_wait(request, reason or "batch full")
        return is_ready

    def _find_own_wait(self, request: Request) -> WaitReason | None:
        if (filler := self.gap_filler) is None:
            return self.find_wait(request)
        # Held back after its gaps were filled, it would keep those blocks from all others meanwhile.
        if filler.has_begun(request):
            if not filler.awaits_fill(request):
                return None
            filler.holds.ahead.add(request.request_id)
            return "fill"
        if filler.held is not None and filler.held[0] is request:
            return filler.held[1]
        return self.find_wait(request)

    def _forget(self, requests: Iterable[Request]) -> None:
        assert self.gap_filler is not None
        self._abort(self.gap_filler.forget(requests))
        self.gap_filler.take_ended()

    def _abort(self, request_ids: Iterable[str]) -> None:
        if names := list(request_ids):
            super().finish_requests(names, RequestStatus.FINISHED_ABORTED)


def _drop_outputs(by_client: dict[int, EngineCoreOutputs], names: set[str]) -> None:
    for outputs in by_client.values():
        outputs.outputs = [output for output in outputs.outputs if output.request_id not in names]
        if outputs.finished_requests:
            outputs.finished_requests -= names


class SteeredCacheManager(KVCacheManager):
    """Has the state of vLLM's own manager, whose class it takes, and does as its scheduler wants.

    It looks for room, and counts gaps that were filled as computed.
    """

    scheduler: MultiSegmentScheduler

    def allocate_slots(self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        """Allocate blocks; look for room before vLLM preempts for a request that finds none."""
        scheduler = self.scheduler
        scheduler.taker = scheduler.client_request_of(request).request_id
        blocks = super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        # What is held for others, before anything is preempted.
        if blocks is None and any(make(request, is_alone=not scheduler.running) for make in scheduler.hooks.make_room):
            blocks = super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        if blocks is None:
            for choose in scheduler.hooks.choose_victim:
                choose(request, scheduler.running)
        return blocks

    def get_computed_blocks(self, request: Request, *limit: int | None) -> tuple[KVCacheBlocks, int, int]:
        """Find the cached blocks that a request begins with. vLLM 0.33 gives the most tokens, None for any.

        A request for which a fill request was planned has been looked up then. KV events need vLLM's own look-up.
        """
        # With returned routed experts there is a limit: such engines fill no gaps.
        is_limited = any(tokens is not None for tokens in limit)
        filler = None if is_limited or self.scheduler.enable_kv_cache_events else self.scheduler.gap_filler
        if filler is None or (prefix := filler.find_prefix(request)) is None:
            return super().get_computed_blocks(request, *limit)
        groups, tokens, boundary = prefix
        return self.create_kv_cache_blocks(groups), tokens, boundary

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        """Record an admission: that of a fill request nowhere else, that of others without what was brought."""
        filler = self.scheduler.gap_filler
        brought = (0, 0) if filler is None else filler.admit(request, num_hits)
        if brought is None:
            self.scheduler.requests[request.request_id] = request
            # The step may have no room to look at its parent.
            self.scheduler.note_wait(self.scheduler.client_request_of(request), "fill")
            return
        filled, fetched = brought
        stats = request.prefill_stats
        if filled + fetched and stats is not None and request.num_preemptions == 0:
            local = stats.num_local_cached_tokens - filled - fetched
            stats.set(stats.num_prompt_tokens, local, stats.num_external_cached_tokens + fetched)
        super().record_prefix_cache_stats(request, num_hits - filled - fetched)


def steer(scheduler: MultiSegmentScheduler, kind: type[SteeredCacheManager] = SteeredCacheManager) -> None:
    """Let the scheduler's cache manager do as it wants."""
    manager = scheduler.kv_cache_manager
    replace(manager, "__class__", kind)
    assert isinstance(manager, SteeredCacheManager)
    manager.scheduler = scheduler
