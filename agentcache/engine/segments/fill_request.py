"""Fill requests and those that they are for: who can have one, what is held for it, and the queue that shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentcache.engine.cached_blocks import CachedBlockMap, HitFinder
from agentcache.engine.constants import FILL_MARK
from agentcache.engine.vllm.types import BlockPool, KVCacheBlock, Request, RequestQueue, RequestStatus, SamplingParams
from agentcache.policy.reuse_plan import Interval, Place

_STARTABLE = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


@dataclass(slots=True, eq=False)
class FillRequest:
    """`request` computes the blocks `gap` of `parent`."""

    request: Request
    parent: Parent
    gap: Interval


@dataclass(slots=True, eq=False)
class Parent:
    """A waiting request with gaps. `held` are its blocks that may not be evicted until it is admitted.

    Of its blocks, by index, fill requests computed `filled`, and `fetched` came from the CPU cache.
    """

    request: Request
    rows: list[FillRequest] = field(default_factory=list)
    held: dict[Place, KVCacheBlock] = field(default_factory=dict)
    filled: set[int] = field(default_factory=set)
    fetched: set[int] = field(default_factory=set)
    dropped: int = 0
    lacked_room: bool = False


def is_startable(request: Request) -> bool:
    """Tell whether vLLM would admit the request if it came up now and there were room."""
    if request.status != RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        return request.status in _STARTABLE
    waits_for = request.structured_output_request
    return waits_for is not None and waits_for.grammar is not None and not isinstance(waits_for.grammar, Exception)


def awaits_grammar(request: Request) -> bool:
    """Tell whether the request's grammar is yet to be compiled, by another thread: a moment later it may be."""
    if request.status != RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        return False
    waits_for = request.structured_output_request
    return waits_for is not None and not waits_for.is_grammar_ready


def find_obstacle(request: Request) -> str | None:
    """Find why the request can have no gaps; None if it can."""
    if request.skip_reading_prefix_cache:
        return "cache not read"
    if request.pooling_params is not None:
        return "pooling"
    if request.prompt_embeds is not None:
        return "prompt embeddings"
    if any(feature.data is not None and "address" in feature.data for feature in request.mm_features):
        # The workers count who has taken it, and a fill request would be one too many.
        return "multi-modal input in shared memory"
    return "streaming input" if request.resumable else None


def make_fill_request(whole: Request, gap: Interval, block_size: int, number: int) -> Request:
    """Make the request that computes a gap of another one. No encoder input may reach beyond the gap's end."""
    end = gap.end * block_size
    fill = Request(
        request_id=f"{whole.request_id}{FILL_MARK}{number}",
        prompt_token_ids=whole.all_token_ids[:end],
        # One token is sampled, because vLLM ends no request before; it is thrown away.
        sampling_params=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False),
        pooling_params=None,
        client_index=whole.client_index,
        arrival_time=whole.arrival_time,
        lora_request=whole.lora_request,
        cache_salt=whole.cache_salt,
        # Those before the gap as well: they tell the positions of the tokens behind them.
        mm_features=[feature for feature in whole.mm_features if feature.mm_position.offset < end],
        priority=whole.priority,
    )
    fill.block_hashes = whole.block_hashes[: gap.end]
    return fill


class Holds:
    """Keeps blocks from eviction until the waiting request that needs them is admitted.

    A held block has a reference, as that of a running request does.
    """

    def __init__(self, pool: BlockPool, finder: HitFinder) -> None:
        # By the request's id.
        self.parents: dict[str, Parent] = {}
        # Requests that this step found waiting for a fill request or a fetch: none that it looks at later takes what
        # they hold.
        self.ahead: set[str] = set()
        self._pool = pool
        self._finder = finder

    def hold_cached(self, request: Request, block_map: CachedBlockMap, places: Sequence[Place]) -> None:
        """Hold blocks of a waiting request that are cached until it is admitted."""
        if (parent := self.parents.get(request.request_id)) is not None:
            # A request that waits for a fetch comes again with what is held already.
            places = [place for place in places if place not in parent.held]
        blocks = self._finder.cache.find_blocks([block_map.keys[group][index] for index, group in places])
        self.hold(request, dict(zip(places, blocks, strict=True)))

    def hold(self, request: Request, blocks: Mapping[Place, KVCacheBlock], *, fetched: bool = False) -> None:
        """Hold blocks of a waiting request until it is admitted."""
        parent = self.parents.setdefault(request.request_id, Parent(request))
        if fetched:
            parent.fetched.update(index for index, _ in blocks)
        new = {place: block for place, block in blocks.items() if place not in parent.held}
        self._pool.touch(list(new.values()))
        parent.held.update(new)

    def release_blocks(self, names: Iterable[str], blocks: Iterable[KVCacheBlock]) -> list[Request]:
        """Release what requests hold of blocks that have not got what they were to hold, and list those that wait."""
        ids = {block.block_id for block in blocks}
        parents = [parent for name in names if (parent := self.parents.get(name)) is not None]
        for parent in parents:
            empty = [place for place, block in parent.held.items() if block.block_id in ids]
            parent.fetched.difference_update(index for index, _ in empty)
            self.release(parent, empty)
        return [parent.request for parent in parents]

    def release_all_but(self, kept: Request | None) -> bool:
        """Release what is held for others than this request and those `ahead` of it.

        Were theirs released as well, requests that fetch more than the cache holds together would evict what the others
        have fetched, for ever. Return False when nothing was held.
        """
        others = [
            parent
            for name, parent in self.parents.items()
            if parent.held and parent.request is not kept and name not in self.ahead
        ]
        for parent in others:
            self.release(parent, parent.held)
        return bool(others)

    def count_held(self) -> Counter[int]:
        """Count how often each block is held, by its id."""
        return Counter(block.block_id for parent in self.parents.values() for block in parent.held.values())

    def release(self, parent: Parent, places: Iterable[Place]) -> None:
        """Release some of what is held for a request."""
        # The last first, as vLLM frees a request's blocks.
        self._pool.free_blocks([parent.held.pop(place) for place in sorted(places, reverse=True)])


class FillingQueue(RequestQueue):
    """Show fill requests at the front of vLLM's own queue, which keeps the order. They are never stored in it."""

    def __init__(
        self, queue: RequestQueue, next_row: Callable[[Request], Request], rows: Mapping[str, FillRequest]
    ) -> None:
        """`next_row` finds what the next request needs first; `rows` are the fill requests under way, by their id."""
        self._queue = queue
        self._next_row = next_row
        self._rows = rows
        self._front: Request | None = None

    def peek_request(self) -> Request:
        """Return the request at the front: a fill request as long as the next one needs any."""
        self._front = self._next_row(self._queue.peek_request())
        return self._front

    def pop_request(self) -> Request:
        """Take the request at the front.

        Where a fill request could not be scheduled, its parent leaves the queue: what keeps a fill
        request from running keeps its parent, too, and both are looked at again in the next step.
        """
        front, self._front = self._front, None
        if front is not None and front.request_id in self._rows:
            return front
        return self._queue.pop_request()

    def add_request(self, request: Request) -> None:
        """Add a client's request to vLLM's queue."""
        self._queue.add_request(request)

    def prepend_request(self, request: Request) -> None:
        """Put a request back at the front, unless it is a fill request: those are planned anew after a preemption."""
        if request.request_id not in self._rows:
            self._queue.prepend_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put requests back at the front of vLLM's queue."""
        self._queue.prepend_requests(requests)

    def remove_request(self, request: Request) -> None:
        """Take out a request that waits."""
        self._front = None
        self._queue.remove_request(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take out those of the requests that wait."""
        self._front = None
        self._queue.remove_requests(requests)

    def __bool__(self) -> bool:
        """Tell whether any client's request waits."""
        return bool(self._queue)

    def __len__(self) -> int:
        """Return the number of clients' requests that wait."""
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        """Iterate over the clients' requests that wait."""
        return iter(self._queue)
