"""Finds why an engine can reuse cached blocks only as prefixes, or else the rule of its model's layers."""

from __future__ import annotations

from enum import Enum

from agentcache.engine.segments.scheduler import MultiSegmentScheduler
from agentcache.engine.vllm.base import VllmConfig
from agentcache.engine.vllm.types import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from agentcache.policy.reuse_plan import Chunk, LayerRule, Window

# Those of layers that a window narrows keep all tokens, too, where vLLM does not tell layers apart.
_FULL = (FullAttentionSpec, MLAAttentionSpec)


class Reason(Enum):
    """`slug` is a metric's label value, `text` what the log, the state and the doctor say."""

    def __init__(self, slug: str, text: str) -> None:
        self.slug = slug
        self.text = text


class Obstacle(Reason):
    """Reasons that lie in the model, or in what the engine was started with."""

    PREFIX_CACHING_OFF = "prefix-caching-off", "prefix caching is off"
    # Others draft with a cache of their own, in which a fill request's last token would have a wrong successor.
    DRAFTER = "drafter", "speculative decoding is on, and not by ngram"
    KV_CONNECTOR = "kv-connector", "a KV connector is in use"
    # What belongs to a gap's tokens is made in the fill request, of which the client hears nothing.
    ROUTED_EXPERTS = "routed-experts", "routed experts are returned"
    # A request may be in one half of a step's batch and read what its fill request, in the other, has yet to write.
    DUAL_BATCH_OVERLAP = "dual-batch-overlap", "dual-batch overlap is on"
    CONTEXT_PARALLEL = "context-parallel", "the cache is split over a context-parallel group"
    # A state stands for all tokens before it: there is nothing behind a gap to go on with.
    RECURRENT_LAYERS = "recurrent-layers", "the model has recurrent layers"
    OTHER_LAYERS = (
        "other-layers",
        "the model has layers of other kinds than full, sliding-window and chunked attention",
    )
    # Its last window is all that a request needs: there are no gaps before it.
    WINDOWS_ALONE = "windows-alone", "no layer of the model keeps all tokens"
    BLOCK_SIZES = "block-sizes", "groups of layers have blocks of several sizes"
    HASH_SIZE = "hash-size", "blocks are hashed in another size than they are kept in"


def find_engine_obstacle(scheduler: MultiSegmentScheduler) -> Obstacle | None:
    """Find why this engine cannot have gaps; None if it can."""
    foreign = scheduler.has_foreign_connector
    found = find_config_obstacle(scheduler.vllm_config, scheduler.kv_cache_config, has_connector=foreign)
    # Last: it is also the mark of several sizes of blocks.
    return found or (Obstacle.HASH_SIZE if scheduler.hash_block_size != scheduler.block_size else None)


def find_config_obstacle(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, *, has_connector: bool = False
) -> Obstacle | None:
    """Find what in the options or the layers rules out gaps. `has_connector`: one that brings blocks by itself."""
    parallel, speculative = vllm_config.parallel_config, vllm_config.speculative_config
    obstacles = {
        Obstacle.PREFIX_CACHING_OFF: not vllm_config.cache_config.enable_prefix_caching,
        Obstacle.DRAFTER: speculative is not None and speculative.method != "ngram",
        Obstacle.KV_CONNECTOR: has_connector,
        Obstacle.ROUTED_EXPERTS: vllm_config.aux_output_config.enabled,
        Obstacle.DUAL_BATCH_OVERLAP: parallel.use_ubatching,
        Obstacle.CONTEXT_PARALLEL: parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size > 1,
    }
    found = next((obstacle for obstacle, holds in obstacles.items() if holds), None)
    return found or find_rule_obstacle(kv_cache_config)


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
