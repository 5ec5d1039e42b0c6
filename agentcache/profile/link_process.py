"""Measures the link in a process of its own, at whose end GPU and host have their memory back, pinned or not."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from agentcache.engine.vllm.base import VllmConfig
from agentcache.errors import InputError
from agentcache.front_end.token_bytes import count_layer_bytes
from agentcache.models.geometry import read_geometry
from agentcache.profile.gpu_copier import GpuCopier
from agentcache.profile.link_rows import LinkRow, LinkTimer, choose_counts, read_rows, write_rows


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


def run_link_process(layout: LinkLayout, rows_file: Path) -> list[LinkRow]:
    """Measure with blocks that lie so, and write the rows to the file. Raises InputError when the process fails."""
    command = [sys.executable, "-m", __name__, str(rows_file), str(layout.pieces), str(layout.piece_bytes)]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, errors="replace")
    sys.stderr.write(done.stderr)
    sys.stderr.flush()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        raise InputError(f"copying ended with status {done.returncode}: {last}")
    return read_rows(rows_file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure rows on the first GPU and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows_file", type=Path)
    parser.add_argument("pieces", type=int)
    parser.add_argument("piece_bytes", type=int)
    options = parser.parse_args(arguments)
    layout = LinkLayout(options.pieces, options.piece_bytes)
    room = _find_room()
    counts = choose_counts(layout.block_bytes, room)
    if len(counts) < _LEAST_ROWS:
        parser.error(f"{room:,} bytes of memory are too few for blocks of {layout.block_bytes:,} bytes")
    timer = LinkTimer(GpuCopier(max(counts), pieces=layout.pieces, piece_bytes=layout.piece_bytes))
    write_rows([timer.measure(count, layout.block_bytes) for count in counts], options.rows_file)
    return 0


def _find_room() -> int:
    """Find the bytes that a cache may take: half of the GPU's free memory, at most a quarter of the host's."""
    free, _ = torch.cuda.mem_get_info()
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(free) // 2, machine // 4)


if __name__ == "__main__":
    sys.exit(main())
