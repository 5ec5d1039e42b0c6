"""Makes vLLM's configuration of a simulated engine, and the scheduler that it gives, without a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.cpu_cache.options import is_steered, make_transfer_config
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.base import EngineArgs, VllmConfig
from agentcache.engine.vllm.compat import check_vllm
from agentcache.engine.vllm.types import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    StructuredOutputManager,
    UniformTypeKVCacheSpecs,
    resolve_kv_cache_block_sizes,
)
from agentcache.engine.vllm.workers import MODELS_CONFIG_MAP
from agentcache.errors import InputError, in_one_line
from agentcache.run.layer_groups import count_blocks, make_layer_groups
from agentcache.sim.clock import VirtualClock


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """The engine's size and settings. `cache_tokens` is rounded down to whole blocks; `knobs` are agentcache's.

    A model with several groups of layers has them in one pool of blocks; its size is, as vLLM counts it, the tokens of
    requests of full length that fit. Recurrent layers lengthen `block_size`.

    With `async_scheduling`, vLLM's default on a GPU, a step is scheduled while the one before it runs. `host_tokens`
    are those of a CPU cache; where a policy leaves it to vLLM, blocks are stored there when they are computed, or, with
    `host_is_lazy`, when they are about to be evicted. `dtype` is vLLM's option.
    """

    model_path: str
    cache_tokens: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    tensor_parallel_size: int = 1
    async_scheduling: bool = False
    host_tokens: int = 0
    host_is_lazy: bool = False
    dtype: str = "auto"
    knobs: Mapping[str, object] = field(default_factory=dict)

    def round_cache(self, block_size: int) -> int:
        """Return the tokens of the cache in whole blocks of this size, as the model has made it."""
        return self.cache_tokens // block_size * block_size


def make_config(shape: EngineShape, policy: str) -> VllmConfig:
    """Make vLLM's configuration of such an engine. Raises InputError for what it refuses."""
    check_vllm()
    config = read_config({CONFIG_KEY: {**shape.knobs, "policy": policy}})
    arguments = EngineArgs(
        model=shape.model_path,
        load_format="dummy",
        dtype=shape.dtype,  # type: ignore[arg-type]
        enforce_eager=True,
        block_size=shape.block_size,
        tensor_parallel_size=shape.tensor_parallel_size,
        # Else vLLM looks for so many GPUs where it finds any support of them.
        distributed_executor_backend="mp" if shape.tensor_parallel_size > 1 else None,
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        scheduler_cls=SCHEDULER_CLASS,
        additional_config={CONFIG_KEY: config.model_dump()},
    )
    try:
        vllm_config = arguments.create_engine_config()
    except ValueError as error:
        raise InputError(f"vLLM refuses the options: {in_one_line(error)}") from None
    _schedule_as_on_a_gpu(vllm_config, shape)
    _keep_states_as_on_a_gpu(vllm_config)
    return vllm_config


def build_scheduler(
    shape: EngineShape, policy: str, clock: VirtualClock, kind: type[AgentScheduler] = AgentScheduler
) -> AgentScheduler:
    """Build the scheduler of such an engine, with its caches empty. Raises InputError for what vLLM refuses."""
    config = make_config(shape, policy)
    groups = make_layer_groups(config)
    _add_host_memory(config, shape, groups)
    blocks = count_blocks(config, groups, shape.round_cache(config.cache_config.block_size))
    return _make_scheduler(kind, config, groups, blocks, clock)


def _add_host_memory(config: VllmConfig, shape: EngineShape, groups: list[KVCacheGroupSpec]) -> None:
    """Give the engine its CPU cache, if it has one, of as many blocks as the GPU's would have."""
    if not shape.host_tokens:
        return
    rank_bytes = count_blocks(config, groups, shape.host_tokens) * _find_block_bytes(groups)
    config.kv_transfer_config = make_transfer_config(
        rank_bytes * shape.tensor_parallel_size,
        steered=is_steered(read_config(config.additional_config)),
        lazy=shape.host_is_lazy,
    )


def _schedule_as_on_a_gpu(config: VllmConfig, shape: EngineShape) -> None:
    """Undo what vLLM chooses for the machine at hand: on most CPUs MLA has no prefix caching and prompts in one go."""
    config.cache_config.enable_prefix_caching = True
    config.scheduler_config.enable_chunked_prefill = True
    config.scheduler_config.max_num_batched_tokens = shape.max_num_batched_tokens
    config.scheduler_config.async_scheduling = shape.async_scheduling


def _keep_states_as_on_a_gpu(config: VllmConfig) -> None:
    """Give recurrent states the type that the model asks for: on some CPUs vLLM takes 32 bits whatever it is."""
    config.cache_config.mamba_ssm_cache_dtype = "auto"
    choose = getattr(MODELS_CONFIG_MAP.get(config.model_config.architecture), "update_mamba_ssm_cache_dtype", None)
    if choose is not None:
        choose(cache_config=config.cache_config, hf_config=config.model_config.hf_config)


def _make_scheduler(
    kind: type[AgentScheduler], config: VllmConfig, groups: list[KVCacheGroupSpec], blocks: int, clock: VirtualClock
) -> AgentScheduler:
    """Make the scheduler as the engine core does, with so many blocks for all groups of layers.

    Where all layers share one table of blocks, one layer stands for all.
    """
    # One block more: vLLM keeps one as a placeholder.
    config.cache_config.num_gpu_blocks = num_blocks = blocks + 1
    block_bytes = _find_block_bytes(groups)
    if len(groups) == 1:
        groups = [KVCacheGroupSpec(["layer"], groups[0].kv_cache_spec)]
    tensors = [
        KVCacheTensor(size=num_blocks * block_bytes, layers=group.layer_names, layer_stride=0, block_stride=0, offset=0)
        for group in groups
    ]
    # As `get_kv_cache_config_from_groups` does: the field's own default is another than vLLM's.
    retention = config.cache_config.prefix_cache_retention_interval
    cache_config = KVCacheConfig(num_blocks, tensors, groups, prefix_cache_retention_interval=retention)
    scheduler_block_size, hash_block_size = resolve_kv_cache_block_sizes(cache_config, config)
    return kind(
        vllm_config=config,
        kv_cache_config=cache_config,
        structured_output_manager=StructuredOutputManager(config),
        block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        clock=clock.now,
    )


def _find_block_bytes(groups: list[KVCacheGroupSpec]) -> int:
    """Find the bytes of a block on each GPU: it is one group's, of which all layers lie in it."""
    # Of layers whose pages differ, one spec stands for all.
    layers = [
        1 if isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs) else len(group.layer_names) for group in groups
    ]
    return max(group.kv_cache_spec.page_size_bytes * count for group, count in zip(groups, layers, strict=True))
