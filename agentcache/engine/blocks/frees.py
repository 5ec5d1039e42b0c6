"""Frees what requests leave, with what the evictor is to know of it, now or when nothing uses the blocks any more."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import chain
from operator import eq
from typing import NamedTuple, Protocol

from agentcache._evictor import FreeContext
from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.blocks.checkpoints import SUPERSEDED, Checkpoints
from agentcache.engine.cached_blocks import Keys, find_held, make_keys
from agentcache.engine.parts import Part
from agentcache.engine.request_state import LeftBranch
from agentcache.engine.vllm.types import KVCacheBlock, KVCacheManager, Request

# What the loss of a block costs that nothing goes on from: less than any other's.
WORTHLESS_S = 1e-9


class Leaving(NamedTuple):
    """Blocks that a request leaves with one context, the first to evict first."""

    blocks: list[KVCacheBlock]
    context: FreeContext


class Describe(Protocol):
    """Tells what the evictor is to know of blocks that a request is about to free; a turn that ends is booked."""

    def __call__(self, request: Request, blocks: list[KVCacheBlock], *, prefix_only: bool, whole: bool) -> FreeContext:
        """Return the context of the blocks."""


def describe_unknown(
    request: Request,  # noqa: ARG001
    blocks: list[KVCacheBlock],  # noqa: ARG001
    *,
    prefix_only: bool,
    whole: bool,
) -> FreeContext:
    """Return the context of blocks of which no job is known."""
    return FreeContext(prefix_only=prefix_only, whole=whole)


class Frees(Part):
    """Leaves to vLLM what requests free: there is no evictor to tell."""

    def is_kept(self, request: Request) -> bool:  # noqa: ARG002
        """Tell whether the request is over, and its blocks are kept for a KV connector."""
        return False

    def keep(self, request: Request) -> None:
        """Book the end of a request whose blocks a KV connector still uses."""

    def free(
        self,
        request: Request,
        free_all: Callable[[Request], None],
        *,
        is_used: bool,  # noqa: ARG002
        step: int,  # noqa: ARG002
    ) -> None:
        """Free all blocks of a request; `free_all` is vLLM's way. `is_used`: until `step` is over they are written."""
        free_all(request)

    def drain(self, processed_step: int) -> None:
        """Free what waits for this step or one before."""


class DescribedFrees(Frees):
    """Gives each block to the evictor with its context.

    Blocks are late for two reasons: a step that writes them is under way, or a KV connector still uses them.

    Of a turn whose client has left it, for a summary or a shorter history, the blocks that nothing goes on from go
    first. Those that are in use, or in a pin, are somebody else's.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        queue: BlockQueue,
        checkpoints: Checkpoints | None,
        *,
        describe: Describe,
        note_use: Callable[[list[KVCacheBlock], FreeContext], None] | None,
        renew: Callable[[FreeContext], FreeContext],
        is_fill_request: Callable[[str], bool],
        fills_gaps: bool,
        fills_gaps_of: Callable[[Request], bool],
        left: list[LeftBranch],
        list_requests: Callable[[], Iterable[Request]],
        note_left: Callable[[Keys, list[KVCacheBlock]], None] | None,
    ) -> None:
        """`queue` is that of the manager's pool. `renew` gives the context that holds by now.

        `note_use`, where there is a CPU cache, notes who frees blocks, and `note_left` what is worth nothing from now
        on: keys of blocks, and those of the GPU that have them. `left` is what clients leave; `list_requests` gives all
        requests that are in the engine.
        """
        self._manager = manager
        self.queue = queue
        self._checkpoints = checkpoints
        self._describe = describe
        self._note_use = note_use
        self._renew = renew
        self._is_fill_request = is_fill_request
        self._fills_gaps = fills_gaps
        self._fills_gaps_of = fills_gaps_of
        self._left = left
        self._list_requests = list_requests
        self._note_left = note_left
        # With the step that has to be over.
        self._deferred: deque[tuple[int, Leaving]] = deque()
        # Some of which may be among the deferred.
        self._left_early: deque[tuple[int, LeftBranch]] = deque()
        # By the request that is over.
        self._in_use: dict[str, list[Leaving]] = {}

    def is_kept(self, request: Request) -> bool:
        """Tell whether the request is over, and its blocks are kept for a KV connector."""
        return request.request_id in self._in_use

    def keep(self, request: Request) -> None:
        """Book the end of a request now, although a KV connector still uses its blocks."""
        self._in_use[request.request_id] = self._divide(request)

    def free(self, request: Request, free_all: Callable[[Request], None], *, is_used: bool, step: int) -> None:
        """Free all blocks of a request, or defer them until `step` is over."""
        kept = self._in_use.pop(request.request_id, None)
        if self._checkpoints is None and self._is_fill_request(request.request_id):
            free_all(request)
            return
        if kept is None and self._checkpoints is None and not is_used:
            with self.queue.free_with(self._find_context(request, self._blocks_of(request))):
                free_all(request)
            return
        leaving = self._divide(request) if kept is None else kept
        self._manager.pop_blocks_for_free(request)
        for each in leaving:
            if not is_used:
                self._free(each)
            elif each.blocks:
                self._deferred.append((step, each))

    def drain(self, processed_step: int) -> None:
        """Free what waits for this step or one before."""
        while self._deferred and self._deferred[0][0] <= processed_step:
            self._free(self._deferred.popleft()[1])
        while self._left_early and self._left_early[0][0] <= processed_step:
            self._give_up(self._left_early.popleft()[1])

    def step(self) -> None:
        """Let go first what clients have left since the last step."""
        while self._left:
            branch = self._left.pop(0)
            self._give_up(branch)
            if self._deferred:
                self._left_early.append((self._deferred[-1][0], branch))

    def _give_up(self, branch: LeftBranch) -> None:
        """Make the branch worthless, but for what other requests have of it. O(requests + its blocks)."""
        first, begins = branch.first, branch.hashes[0]
        theirs = [request.block_hashes for request in self._list_requests()]
        alike = [hashes[first:] for hashes in theirs if len(hashes) > first and hashes[first] == begins]
        # A hash stands for all blocks before it as well.
        kept = max((sum(map(eq, hashes, branch.hashes)) for hashes in alike), default=0)
        keys = make_keys(branch.hashes[kept:], len(self._manager.coordinator.single_type_managers))
        held = find_held(self._manager.block_pool.cached_block_hash_to_block, keys)
        blocks = [block for block in held if not block.ref_cnt]
        self.queue.reprice(blocks, WORTHLESS_S)
        if self._note_left is not None:
            self._note_left(keys, blocks)

    def reset(self) -> None:
        """Note that no free block holds KV any more."""
        self._left.clear()
        self._left_early.clear()
        self.queue.forget_kv()

    def count_held(self) -> Counter[int]:
        """Count how often each block is held here, by its id, beside what requests have in vLLM's tables."""
        held = Counter(block.block_id for _, each in self._deferred for block in each.blocks)
        for request_id, leaving in self._in_use.items():
            own = chain.from_iterable(self._manager.get_blocks(request_id).blocks)
            held += Counter(_ids(chain.from_iterable(each.blocks for each in leaving))) - Counter(_ids(own))
        return held

    def check_integrity(self) -> None:
        """Raise IntegrityError when the free blocks and the reference counts disagree."""
        self.queue.check_integrity()

    def _free(self, leaving: Leaving) -> None:
        with self.queue.free_with(self._renew(leaving.context)):
            self._manager.block_pool.free_blocks(leaving.blocks)

    def _divide(self, request: Request) -> list[Leaving]:
        """Divide what a request leaves by what the evictor is to know of it; a turn that ends is booked."""
        blocks = self._blocks_of(request)
        if self._is_fill_request(request.request_id):
            # What the gap was filled for is held for its parent: the rest are windows on the way, and copies.
            return [Leaving(blocks[::-1], SUPERSEDED)]
        if self._checkpoints is None:
            return [Leaving(blocks[::-1], self._find_context(request, blocks))]
        superseded, begins, kept = self._checkpoints.leave(request, blocks)
        # A pin keeps the beginning with the rest.
        context = self._find_context(request, kept + begins)
        return [Leaving(superseded, SUPERSEDED), Leaving(begins, self._checkpoints.beginning), Leaving(kept, context)]

    def _blocks_of(self, request: Request) -> list[KVCacheBlock]:
        return list(chain.from_iterable(self._manager.get_blocks(request.request_id).blocks))

    def _find_context(self, request: Request, blocks: list[KVCacheBlock]) -> FreeContext:
        is_prefix_only = not self._fills_gaps_of(request)
        context = self._describe(
            request,
            blocks,
            prefix_only=self._fills_gaps and is_prefix_only,
            whole=self._checkpoints is not None and is_prefix_only,
        )
        if self._note_use is not None:
            self._note_use(blocks, context)
        return context


def _ids(blocks: Iterable[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]
