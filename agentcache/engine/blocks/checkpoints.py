"""Keeps those of a request's blocks that its next turn would use, where layers do not all keep all tokens.

A later request goes on from a checkpoint: a position at which every group of layers has what it needs.

    full attention    | every block before it
    sliding window    |                   the last window |
    chunked attention |              the chunk's beginning |
    recurrent         |                       the state at it |

A turn's last checkpoint is what its job comes back to: the one at its prompt's end where the client does not repeat
replies (thoughts, mostly), else the one at its reply's. A prompt that several jobs begin with has one at its end.
Blocks that no such checkpoint needs are superseded: they are free first. vLLM itself is asked which blocks a checkpoint
needs.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from itertools import chain

from agentcache._evictor import SHARED_CLASS, FreeContext
from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.parts import Part
from agentcache.engine.vllm.patches import replace
from agentcache.engine.vllm.types import (
    BlockHash,
    FullAttentionSpec,
    KVCacheBlock,
    KVCacheConfig,
    KVCacheManager,
    Request,
    get_block_hash,
    get_group_id,
)

SUPERSEDED = FreeContext(superseded=True)
# Hashes of such blocks; a prompt of a million tokens has as many.
_MOST_BEGINNINGS = 65_536


def has_checkpoints(config: KVCacheConfig) -> bool:
    """Tell whether any layers of the model keep less than all tokens: else every block's end is a checkpoint.

    Layers that a window narrows keep all, too, under --disable-hybrid-kv-cache-manager.
    """
    return not all(isinstance(group.kv_cache_spec, FullAttentionSpec) for group in config.kv_cache_groups)


def keep_checkpoints(config: KVCacheConfig) -> KVCacheConfig:
    """Return the config by which vLLM registers all windows and states, of which `Checkpoints` keeps some.

    By default it keeps those at a prompt's end alone, and the reply behind it would supersede them.
    """
    return dataclasses.replace(config, prefix_cache_retention_interval=None) if has_checkpoints(config) else config


class Checkpoints(Part):
    """Steers what a scheduler's requests free, in mid-run and at their end. `queue` is its block pool's."""

    def __init__(
        self,
        manager: KVCacheManager,
        queue: BlockQueue,
        *,
        find_request: Callable[[str], Request | None],
        is_fill_request: Callable[[str], bool],
        begins_job: Callable[[Request], bool],
        find_return: Callable[[Request], int | None],
        fills_gaps: bool,
    ) -> None:
        """`begins_job` tells whether a request goes on from no turn that is known.

        `find_return` gives the tokens of its prompt that its job will come back with; None: with the reply, too.
        """
        # Several jobs have begun with it: it belongs to none of them.
        self.beginning = FreeContext(finish_class=SHARED_CLASS, prefix_only=not fills_gaps)
        self._manager = manager
        self._queue = queue
        self._find_request = find_request
        self._begins_job = begins_job
        self._find_return = find_return
        # Where running requests left what other jobs have begun with, in tokens.
        self._shared: dict[str, int] = {}
        # Where the prompts end of running requests whose jobs will not repeat the reply, in tokens.
        self._ends: dict[str, int] = {}
        # Of the blocks that keep these tokens, the latest last.
        self._beginnings: OrderedDict[BlockHash, None] = OrderedDict()
        # Of running requests: what vLLM has freed last of each group, which the last checkpoint may need still.
        self._held: dict[str, list[KVCacheBlock]] = {}
        self._supersede_skipped(is_fill_request)

    def _supersede_skipped(self, is_fill_request: Callable[[str], bool]) -> None:
        """Have what a running request skips, such as blocks behind its window, go before all else."""
        coordinator = self._manager.coordinator
        remove_skipped_blocks = coordinator.remove_skipped_blocks

        def supersede_skipped_blocks(
            request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
        ) -> None:
            with self._queue.free_with(SUPERSEDED), self._queue.note_freed() as freed:
                remove_skipped_blocks(request_id, processed_computed_tokens, num_prompt_tokens)
            if freed and not is_fill_request(request_id):
                self._hold(request_id, freed, processed_computed_tokens)
            if processed_computed_tokens >= self._shared.get(request_id, processed_computed_tokens + 1):
                self._keep_shared(request_id)

        replace(coordinator, "remove_skipped_blocks", supersede_skipped_blocks)

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:  # noqa: ARG002
        """Note where the job of a request that runs has begun, and where it will come back to."""
        if self._begins_job(request):
            self._begin(request, hit_tokens)
        if (end := self._find_return(request)) is not None:
            self._ends[request.request_id] = end

    def make_room(self, request: Request, *, is_alone: bool) -> bool:  # noqa: ARG002
        """Free what is held of running requests' checkpoints. Return whether that made room."""
        held = list(chain.from_iterable(self._held.values()))
        self._held.clear()
        self._supersede(held)
        return bool(held)

    def count_held(self) -> Counter[int]:
        """Count how often each block is held, by its id."""
        return Counter(block.block_id for block in chain.from_iterable(self._held.values()))

    def _hold(self, request_id: str, freed: list[KVCacheBlock], processed_tokens: int) -> None:
        """Hold what the last checkpoint may need of what was freed, in place of what was held."""
        last = self._held.pop(request_id, [])
        request, end = self._find_request(request_id), self._ends.get(request_id)
        if request is not None and end is not None and end < processed_tokens:
            needed = {block.block_id for block in self.find(request, end)}
            held = [block for block in (*last, *freed) if block.block_id in needed]
        else:
            held = _find_last([*last, *freed])
        before, now = ({block.block_id for block in blocks} for blocks in (last, held))
        self._manager.block_pool.touch([block for block in held if block.block_id not in before])
        # Those whose hash was taken from them in the meantime are of no use.
        self._supersede([block for block in last if block.block_id not in now])
        self._held[request_id] = held

    def _supersede(self, blocks: list[KVCacheBlock]) -> None:
        with self._queue.free_with(SUPERSEDED):
            self._manager.block_pool.free_blocks(blocks)

    def _begin(self, request: Request, hit_tokens: int) -> None:
        """Note the admission of a job's first request, whose beginning others have had in common with it.

        What a prefill instance sent belongs to this request alone.
        """
        if request.kv_transfer_params and request.prefill_stats is not None:
            hit_tokens = request.prefill_stats.num_local_cached_tokens
        shared = max(hit_tokens, request.shared_prefix_boundary)
        if not shared:
            return
        self._shared[request.request_id] = shared
        for block_hash in request.block_hashes[: shared // self._manager.block_pool.hash_block_size]:
            self._beginnings[block_hash] = None
            self._beginnings.move_to_end(block_hash)
        while len(self._beginnings) > _MOST_BEGINNINGS:
            self._beginnings.popitem(last=False)

    def find(self, request: Request, tokens: int) -> list[KVCacheBlock]:
        """Find the blocks that the last usable checkpoint among the request's first `tokens` needs, group by group."""
        groups, _, _ = self._manager.coordinator.find_longest_cache_hit(request.block_hashes, tokens)
        return [block for block in chain.from_iterable(groups) if not block.is_null]

    def leave(
        self, request: Request, blocks: Iterable[KVCacheBlock]
    ) -> tuple[list[KVCacheBlock], list[KVCacheBlock], list[KVCacheBlock]]:
        """Split what a request leaves: superseded blocks, those that jobs begin with, those of its last checkpoint.

        The first to lose are the first of each.

        What the checkpoint needs and vLLM has freed in mid-run is taken out of the free blocks: it is the caller's to
        free, with the request's own `blocks`.
        """
        self._shared.pop(request.request_id, None)
        held = self._held.pop(request.request_id, [])
        # A preempted one goes on from where it is.
        end = self._ends.pop(request.request_id, None) if request.is_finished() else None
        needed = self.find(request, request.num_tokens if end is None else end)
        freed = [block for block in needed if block.ref_cnt == 0]
        self._manager.block_pool.touch(freed)
        ids = {block.block_id for block in needed}
        own = [block for block in (*blocks, *held) if not block.is_null]
        kept = _order([*freed, *(block for block in own if block.block_id in ids)])
        begins = [block for block in kept if self._begins_jobs(block)]
        chain_end = [block for block in kept if not self._begins_jobs(block)]
        return [block for block in reversed(own) if block.block_id not in ids], begins, chain_end

    def _begins_jobs(self, block: KVCacheBlock) -> bool:
        return block.block_hash is not None and get_block_hash(block.block_hash) in self._beginnings

    def revive(self, blocks: Iterable[KVCacheBlock], context: FreeContext) -> None:
        """Give free blocks the value that they have by this context."""
        pool = self._manager.block_pool
        free = [block for block in blocks if block.ref_cnt == 0]
        pool.touch(free)
        with self._queue.free_with(context):
            pool.free_blocks(_order(free))

    def _keep_shared(self, request_id: str) -> None:
        """Keep what a job needs that begins as this request did, once the request needs it no longer."""
        request = self._find_request(request_id)
        if request is None:
            return
        needed = self.find(request, self._shared[request_id])
        held = {block.block_id for block in self._held.get(request_id, ())}
        blocks = [block for block in needed if block.ref_cnt == 0]
        if blocks and held.isdisjoint(block.block_id for block in needed):
            self.revive(blocks, self.beginning)
            del self._shared[request_id]


def _find_last(blocks: Iterable[KVCacheBlock]) -> list[KVCacheBlock]:
    """Find the last block of each group."""
    found: dict[int, KVCacheBlock] = {}
    for block in blocks:
        if block.block_hash is not None:
            group = get_group_id(block.block_hash)
            if group not in found or _position(block) > _position(found[group]):
                found[group] = block
    return list(found.values())


def _order(blocks: Iterable[KVCacheBlock]) -> list[KVCacheBlock]:
    """Put the end of a sequence first, as vLLM does; a window or state goes with the last block before it."""
    return sorted(blocks, key=_position, reverse=True)


def _position(block: KVCacheBlock) -> int:
    return block.block_hash_num_tokens or 0
