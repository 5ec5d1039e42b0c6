"""Measures the link in a process of its own, at whose end GPU and host have their memory back, pinned or not."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch

from agentcache.engine.vllm.base import VllmConfig
from agentcache.errors import InputError, in_one_line
from agentcache.front_end.token_bytes import count_layer_bytes
from agentcache.models.geometry import read_geometry
from agentcache.profile.gpu_copier import GpuCopier
from agentcache.profile.link_rows import LinkRow, LinkTimer, choose_counts


@dataclass(frozen=True, slots=True)
class LinkLayout:
    """The pieces of a block on one GPU, and the bytes of each."""

    pieces: int
    piece_bytes: int

    @property
    def block_bytes(self) -> int:
        """The bytes of all pieces."""
        return self.pieces * self.piece_bytes


def find_layout(config: VllmConfig) -> LinkLayout:
    """Find how the engine's blocks will lie, unless its attention backend wants another block size at the start.

    Raises InputError for a model whose blocks are not all alike.
    """
    geometry = read_geometry(config.model_config.hf_text_config)
    if geometry.recurrent is not None or [layers.window for layers in geometry.attention] != [None]:
        raise InputError("no policy steers the host's memory of a model with windows or several kinds of layers")
    model, parallel = config.model_config, config.parallel_config
    token_bytes = count_layer_bytes(config, model.get_num_kv_heads(parallel))
    return LinkLayout(model.get_num_layers(parallel), token_bytes * config.cache_config.block_size)


# One tells latency and bandwidth not apart.
_LEAST_ROWS = 2


def run_link_process(layout: LinkLayout) -> list[LinkRow]:
    """Measure with blocks that lie so. Raises InputError when the process fails."""
    # Not forked: vLLM and PyTorch have threads.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(measure_rows, layout).result()
        except Exception as error:
            raise InputError(f"copying ended: {in_one_line(error)}") from error


def measure_rows(layout: LinkLayout) -> list[LinkRow]:
    """Measure rows on the first GPU. Raises InputError where memory has room for too few."""
    room = _find_room()
    counts = choose_counts(layout.block_bytes, room)
    if len(counts) < _LEAST_ROWS:
        raise InputError(f"{room:,} bytes of memory are too few for blocks of {layout.block_bytes:,} bytes")
    timer = LinkTimer(GpuCopier(max(counts), pieces=layout.pieces, piece_bytes=layout.piece_bytes))
    return [timer.measure(count, layout.block_bytes) for count in counts]


def _find_room() -> int:
    """Find the bytes that a cache may take: half of the GPU's free memory, at most a quarter of the host's."""
    free, _ = torch.cuda.mem_get_info()
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(free) // 2, machine // 4)
