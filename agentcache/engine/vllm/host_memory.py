"""The CPU cache's memory at a worker: as many tensors as the GPU's KV cache has, pinned where it can be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import psutil  # type: ignore[import-untyped]
import torch

from agentcache.engine.start_cause import refuse_start
from agentcache.engine.vllm.base import VllmConfig, init_logger
from agentcache.engine.vllm.types import KVCacheConfig
from agentcache.engine.vllm.workers import get_world_group, is_pin_memory_available, pin_tensor

logger = init_logger("vllm.agentcache")

# By a name: a tensor of so many blocks, each in one piece.
Pieces = dict[str, torch.Tensor]


def find_rank_bytes(config: VllmConfig) -> int:
    """Find the bytes of the CPU cache at each rank."""
    assert config.kv_transfer_config is not None
    wanted = config.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"]
    return int(wanted) // config.parallel_config.world_size


def count_host_blocks(config: VllmConfig, kv_cache_config: KVCacheConfig) -> int:
    """Count the blocks of the CPU cache at a rank whose GPU has such a cache."""
    # Every entry tells the size of the one allocation in which all of them lie.
    size = kv_cache_config.kv_cache_tensors[0].size
    return max(1, kv_cache_config.num_blocks * find_rank_bytes(config) // size)


def find_pieces(kv_caches: Mapping[str, torch.Tensor], config: KVCacheConfig) -> Pieces:
    """View a worker's KV caches as tensors of bytes, a row a block.

    vLLM lays layers out so that a layer's block lies `offset + layer * layer_stride + block * block_stride` bytes into
    an allocation. Either a block's layers lie together, and the rows are whole blocks; or the blocks of each layer do,
    or of each part of it, and there is a tensor for each.
    """
    found: dict[int, torch.Tensor] = {}
    for placed in config.kv_cache_tensors:
        cache = next((kv_caches[name] for name in placed.layers if name in kv_caches), None)
        if cache is None:
            continue
        storage = cache.untyped_storage()
        memory = torch.empty(0, dtype=torch.int8, device=cache.device).set_(storage)
        rows, row_bytes = config.num_blocks, placed.block_stride
        piece_bytes = rows * row_bytes
        begin, end = 0, piece_bytes
        if placed.layer_stride >= piece_bytes:
            begin = placed.offset
            end = begin + len(placed.layers) * placed.layer_stride
        if end > memory.numel() or (end - begin) % piece_bytes:
            raise ValueError(f"the KV cache has {memory.numel()} bytes, and its layout takes {end}: {placed}")
        for start in range(begin, end, piece_bytes):
            piece = memory[start : start + piece_bytes].view(rows, row_bytes)
            found.setdefault(piece.data_ptr(), piece)
    return {str(number): piece for number, piece in enumerate(found.values())}


def make_host_pieces(on_gpu: Pieces, blocks: int) -> Pieces:
    """Make the CPU cache's tensors, each for so many blocks of one of the GPU's.

    Pinned after they are made: PyTorch's own allocator of pinned memory rounds sizes up to the next power of two.
    """
    pieces = {name: torch.zeros((blocks, *each.shape[1:]), dtype=each.dtype) for name, each in on_gpu.items()}
    if not next(iter(on_gpu.values())).is_cuda:
        return pieces
    if is_pin_memory_available():
        for piece in pieces.values():
            pin_tensor(piece)
    else:
        logger.warning("--kv-offloading-size: this host pins no memory, so copies are slow.")
    return pieces


def take_memory(on_gpu: Pieces, blocks: int, config: VllmConfig) -> Pieces:
    """Take the memory of the CPU cache.

    Raises:
        InputError: The host does not have it, or does not let it be pinned.
    """
    size = find_rank_bytes(config)
    _check_free_memory(size, config)
    try:
        return make_host_pieces(on_gpu, blocks)
    except RuntimeError as error:
        if (cause := _explain(str(error))) is None:
            raise
        _refuse(size, cause, error)


def _check_free_memory(size: int, config: VllmConfig) -> None:
    """Refuse what is not free. The kernel would give it, and end some process once it is written to."""
    free = psutil.virtual_memory().available + psutil.swap_memory().free
    ranks = config.parallel_config.local_world_size
    if config.parallel_config.world_size > 1:
        # No rank takes its memory before all have looked.
        get_world_group().barrier()
    if size * ranks > free:
        each = f" for each of {ranks} ranks" if ranks > 1 else ""
        _refuse(size, f"are wanted{each}, and {free / 2**30:.1f} GiB are free; give less", None)


def _explain(error: str) -> str | None:
    """Say why there is no memory, and what to do, by what PyTorch or vLLM says; None for another error."""
    if "cudaHostRegister" in error:
        return f"cannot be pinned for the GPU ({error}): give less, or raise the limit of locked memory (ulimit -l)"
    if "DefaultCPUAllocator" in error:
        return "cannot be had: give less, or raise the limit of a process's memory (ulimit -v)"
    return None


def _refuse(size: int, cause: str, error: RuntimeError | None) -> NoReturn:
    raise refuse_start(f"--kv-offloading-size: {size / 2**30:.1f} GiB of the host's memory {cause}") from error
