"""Fill requests and those that they are for: what one is made of, and who can have one."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentcache.engine.constants import FILL_MARK
from agentcache.engine.segments.plan import Interval
from agentcache.engine.vllm.base import cdiv
from agentcache.engine.vllm.types import KVCacheBlock, Request, RequestStatus, SamplingParams

# A block of a request: its index, and its group of layers.
Place = tuple[int, int]

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


def find_inputs(request: Request, block_size: int) -> list[Interval]:
    """Find the blocks of encoder inputs, an image's for instance, before which no gap can end: all but the first."""
    places = [feature.mm_position for feature in request.mm_features]
    return [Interval(place.offset // block_size + 1, cdiv(place.offset + place.length, block_size)) for place in places]


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
