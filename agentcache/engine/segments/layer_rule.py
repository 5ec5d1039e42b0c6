"""From where a request can go on with cached blocks, where layers do not all keep all tokens.

At such a place each group of layers has what it needs:

    full attention    | every block before it
    sliding window    |                   the last window |
    chunked attention |              the chunk's beginning |

Of a run of blocks that full attention has cached, what lies before the last such place in it can be reused, and nothing
behind it. A gap is computed from the end of what can be reused before it, whatever full attention has between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from agentcache.engine.segments.obstacles import Obstacle
from agentcache.engine.segments.plan import Interval, find_hits
from agentcache.engine.vllm.types import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

# Those of layers that a window narrows keep all tokens, too, where vLLM does not tell layers apart.
_FULL = (FullAttentionSpec, MLAAttentionSpec)


@dataclass(frozen=True, slots=True)
class Window:
    """A group whose layers see that many blocks before a token's own."""

    blocks: int

    def start(self, end: int) -> int:
        """Return the first block that a token behind the first `end` blocks sees."""
        return max(0, end - self.blocks)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A group whose layers see a token's own chunk."""

    tokens: int
    block_size: int

    def start(self, end: int) -> int:
        """Return the first block that a token behind the first `end` blocks sees."""
        return end * self.block_size // self.tokens * self.tokens // self.block_size


@dataclass(frozen=True, slots=True)
class LayerRule:
    """The groups whose layers keep all tokens, and what each of the others keeps, by their numbers."""

    full: tuple[int, ...] = (0,)
    parts: tuple[tuple[int, Window | Chunk], ...] = ()

    @property
    def groups(self) -> int:
        """Return the number of groups."""
        return len(self.full) + len(self.parts)

    def find_full(self, cached: Sequence[bytearray]) -> bytearray:
        """Find the blocks that all full attention has cached. `cached[g][i]` is 1 where group g has block i."""
        first, *others = (cached[group] for group in self.full)
        if not others:
            return first
        both = int.from_bytes(first)
        for other in others:
            both &= int.from_bytes(other)
        return bytearray(both.to_bytes(len(first)))

    def find_usable(self, cached: Sequence[bytearray], limit: int) -> bytearray:
        """Find the blocks that can be reused by somebody who computes all others before `limit`. `cached` as above."""
        full = self.find_full(cached)
        if not self.parts:
            return full
        usable = bytearray(len(full))
        hits = find_hits(full, limit)
        for start, end in (Interval(0, hits.prefix), *hits.islands):
            last = self._last_place(cached, start, end)
            usable[start:last] = b"\1" * (last - start)
        return usable

    def needed_at(self, end: int) -> Iterator[tuple[int, range]]:
        """Yield what groups that keep a part need to go on behind the first `end` blocks: group and blocks."""
        return ((group, range(part.start(end), end)) for group, part in self.parts)

    def _last_place(self, cached: Sequence[bytearray], start: int, end: int) -> int:
        """Find the last place in a run from where one can go on; its start if there is none."""
        while end > start:
            # Each group moves the place back, or leaves it where it is: then it suits all.
            place = reduce(lambda place, part: _last_end(cached[part[0]], part[1], place), self.parts, end)
            if place == end:
                return end
            end = place
        return start


def _last_end(cached: bytearray, part: Window | Chunk, end: int) -> int:
    """Find the last place up to `end` where a group has its part: a block that one lacks all up to `end` lack."""
    while (missing := cached.find(0, part.start(end), end)) >= 0:
        end = missing
    return end


def find_rule_obstacle(config: KVCacheConfig) -> Obstacle | None:
    """Find why gaps of a model with these groups cannot be filled; None if they can."""
    if config.has_mamba_layers:
        return Obstacle.RECURRENT_LAYERS
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    if not all(map(_is_known, specs)):
        return Obstacle.OTHER_LAYERS
    if not any(type(spec) in _FULL for spec in specs):
        return Obstacle.WINDOWS_ALONE
    return Obstacle.BLOCK_SIZES if len({spec.block_size for spec in specs}) > 1 else None


def _is_known(spec: KVCacheSpec) -> bool:
    """Tell whether a block holds its own tokens, each by itself. Kinds derived from these may keep something else."""
    return type(spec) in (*_FULL, SlidingWindowSpec, ChunkedLocalAttentionSpec) and spec.tokens_per_state == 1


def has_full_attention_alone(config: KVCacheConfig) -> bool:
    """Tell whether all layers see and keep all tokens."""
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    return len(specs) == 1 and all(
        isinstance(spec, FullAttentionSpec) and spec.sliding_window is None and spec.attention_chunk_size is None
        for spec in specs
    )


def make_rule(config: KVCacheConfig) -> LayerRule:
    """Make the rule of a model with these groups, for which there must be no obstacle."""
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    full = tuple(group for group, spec in enumerate(specs) if type(spec) in _FULL)
    return LayerRule(full, tuple((group, _read_part(specs[group])) for group in range(len(specs)) if group not in full))


def _read_part(spec: KVCacheSpec) -> Window | Chunk:
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return Chunk(spec.attention_chunk_size, spec.block_size)
    assert isinstance(spec, SlidingWindowSpec)
    # vLLM looks for one block even where a token sees itself alone.
    return Window(max(1, -(-(spec.sliding_window - 1) // spec.block_size)))
