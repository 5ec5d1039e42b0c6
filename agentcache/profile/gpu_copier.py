"""Copies between a GPU and the host's memory as vLLM's own workers make them."""

from __future__ import annotations

import numpy as np
import torch

from agentcache.engine.vllm.workers import BatchMemcpyParams, build_params, copy_blocks, pin_tensor


class GpuCopier:
    """Two caches of the same blocks, one layer a tensor, and a stream for each direction.

    Nothing unpins the host's cache: it goes with the process.
    """

    def __init__(self, blocks: int, *, pieces: int, piece_bytes: int) -> None:
        """Make both caches, of blocks in so many pieces of so many bytes each."""
        names = [str(layer) for layer in range(pieces)]
        shape = (blocks, piece_bytes)
        on_gpu = {name: torch.zeros(shape, dtype=torch.int8, device="cuda") for name in names}
        on_host = {name: torch.zeros(shape, dtype=torch.int8) for name in names}
        for tensor in on_host.values():
            pin_tensor(tensor)
        self._streams = [torch.cuda.Stream(), torch.cuda.Stream()]  # type: ignore[no-untyped-call]
        self._fetch = build_params(on_host, on_gpu, self._streams[0])
        self._store = build_params(on_gpu, on_host, self._streams[1])
        # The copies know their addresses alone.
        self._caches = on_gpu, on_host
        # Filling the cache is no part of what is timed.
        torch.cuda.synchronize()
        self._order = np.random.default_rng(0).permutation(blocks).tolist()

    def fetch(self, blocks: int) -> None:
        """Begin to copy so many blocks to the GPU."""
        self._copy(blocks, self._fetch)

    def store(self, blocks: int) -> None:
        """Begin to copy so many blocks from the GPU."""
        self._copy(blocks, self._store)

    def wait(self) -> None:
        """Wait until copies in both directions have ended."""
        for stream in self._streams:
            stream.synchronize()

    def _copy(self, blocks: int, params: BatchMemcpyParams) -> None:
        """Copy blocks from places that do not follow one another to such places."""
        copy_blocks(self._order[:blocks], self._order[::-1][:blocks], params)
