"""What tests do at an engine's workers, each in a process of its own: vLLM's `collective_rpc` calls them there."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from agentcache.engine.vllm import copiers

if TYPE_CHECKING:
    from live_engine import LiveEngine

# As they are when no copy is made to fail.
_COPY_BLOCKS, _ASSIGN_BLOCKS = copiers.copy_blocks, copiers.assign_blocks


class Difference(NamedTuple):
    """Of a worker's share of a block from a cold engine's: in bytes, and as a part of the share's norm."""

    other_bytes: int
    distance: float


class NotedLog(logging.Handler):
    """Keeps what is logged in a worker's process."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


_LOG = NotedLog()


def call_workers(engine: LiveEngine, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call a module's function at each worker, with the worker and `args`; what they return, by rank."""
    executor: Any = engine.core.model_executor
    results: list[Any] = executor.collective_rpc(function, args=args, timeout=120)
    return results


def find_copier() -> Any:
    connector: Any = get_kv_transfer_group()
    return connector.copier


def count_layers(worker: Any) -> int:
    return len(get_layers_from_vllm_config(worker.vllm_config, AttentionLayerBase))


def save_host_blocks(worker: Any, folder: Path, ids: list[int]) -> None:
    """Write what this worker's host memory has of these blocks."""
    torch.save({name: piece[ids] for name, piece in find_copier().on_host.items()}, folder / f"{worker.rank}.pt")


def compare_gpu_blocks(worker: Any, folder: Path, first: int, ids: list[int]) -> list[Difference]:
    """Compare what this worker's GPU has in these blocks with those that were saved, from the `first` on."""
    saved = torch.load(folder / f"{worker.rank}.pt", mmap=True)
    pieces = find_copier().on_gpu
    assert saved.keys() == pieces.keys()
    computed = torch.cat([piece[ids].cpu() for piece in pieces.values()], dim=1)
    stored = torch.cat([saved[name][first : first + len(ids)] for name in pieces], dim=1)
    other = (computed != stored).sum(dim=1).tolist()
    numbers, others = (each.view(worker.model_config.dtype).double() for each in (computed, stored))
    distances = ((others - numbers).norm(dim=1) / numbers.norm(dim=1)).tolist()
    return [Difference(*pair) for pair in zip(other, distances, strict=True)]


def flip_bit(worker: Any, rank: int, block: int) -> None:
    """Flip a number's lowest bit in the host memory of one worker."""
    if worker.rank == rank:
        piece = list(find_copier().on_host.values())[-1]
        piece[block, piece.shape[1] // 2] ^= 1


def put_other_blocks(worker: Any, rank: int, blocks: list[int], others: list[int]) -> None:
    """Have the host memory of one worker hold others in these blocks' places.

    The same blocks in another order would be no fault that a reply tells: attention is a sum over them.
    """
    if worker.rank == rank:
        for piece in find_copier().on_host.values():
            piece[blocks] = piece[others]


def fail_copies(worker: Any, rank: int, every: int, error: str) -> None:
    """Let each `every`-th copy of one worker fail, when it has copied its first block to all places; note all logs."""
    logger = copiers.logger
    if _LOG not in logger.handlers:
        logger.addHandler(_LOG)
    _LOG.lines.clear()
    if worker.rank != rank:
        return
    numbers = itertools.count(1)

    def copy_blocks(sources: list[int], targets: list[int], params: Any) -> None:
        fails = not next(numbers) % every
        _COPY_BLOCKS(sources[:1] * len(sources) if fails else sources, targets, params)
        if fails:
            raise RuntimeError(error)

    def assign_blocks(sources: Any, read: list[int], targets: Any, written: list[int]) -> None:
        fails = not next(numbers) % every
        _ASSIGN_BLOCKS(sources, read[:1] * len(read) if fails else read, targets, written)
        if fails:
            raise RuntimeError(error)

    copiers.copy_blocks, copiers.assign_blocks = copy_blocks, assign_blocks


def mend_copies(worker: Any) -> list[str]:  # noqa: ARG001 (as all that workers are called with)
    """Let no copy fail any more. Return what has been logged since they failed."""
    copiers.copy_blocks, copiers.assign_blocks = _COPY_BLOCKS, _ASSIGN_BLOCKS
    return list(_LOG.lines)
