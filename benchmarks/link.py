"""The link between a GPU and the host's memory, with vLLM's own batched copies of KV blocks.

python benchmarks/link.py --out link.json [--model shape:llama-3.1-8b] [--block-size 16]

Each row copies so many blocks to the GPU, from it, and both ways at once; then both ways while large matrix products
run, whose own slowdown is the last column. A block lies in as many pieces as the model has layers, as in an engine.
Medians of the repeats. Printed last: the latency and the bandwidth that `tier.latency_s` and `tier.link_gb_s` are to
be set to, by least squares over the rows of one direction at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig
from vllm.v1.simple_kv_offload.cuda_mem_ops import BatchMemcpyParams, build_params, copy_blocks, pin_tensor

from agentcache.models.catalog import resolve_model

COUNTS = (1, 16, 64, 256, 1024, 4096)
REPEATS = 7
MATRIX = 8192
PRODUCTS = 20


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds for `blocks` of `bytes` each. `slowdown` is of the products beside which both directions ran."""

    blocks: int
    bytes: int
    fetch_s: float
    store_s: float
    both_s: float
    beside_s: float
    slowdown: float

    def gb_s(self, seconds: float) -> float:
        return self.blocks * self.bytes / seconds / 1e9


class Link:
    """Two caches of the same blocks, one layer a tensor, and a stream for each direction."""

    def __init__(self, layers: int, piece_bytes: int, blocks: int) -> None:
        names = [str(layer) for layer in range(layers)]
        shape = (blocks, piece_bytes)
        on_gpu = {name: torch.zeros(shape, dtype=torch.int8, device="cuda") for name in names}
        on_host = {name: torch.zeros(shape, dtype=torch.int8) for name in names}
        for tensor in on_host.values():
            pin_tensor(tensor)
        self.streams = [torch.cuda.Stream(), torch.cuda.Stream()]  # type: ignore[no-untyped-call]
        self.fetch = build_params(on_host, on_gpu, self.streams[0])
        self.store = build_params(on_gpu, on_host, self.streams[1])
        self._caches = on_gpu, on_host
        self._order = np.random.default_rng(0).permutation(blocks).tolist()
        self._matrix = torch.randn(MATRIX, MATRIX, dtype=torch.bfloat16, device="cuda")

    def copy(self, count: int, *directions: BatchMemcpyParams) -> None:
        """Copy blocks from places that do not follow one another to such places."""
        for params in directions:
            copy_blocks(self._order[:count], self._order[::-1][:count], params)

    def multiply(self) -> None:
        for _ in range(PRODUCTS):
            torch.mm(self._matrix, self._matrix)

    def wait(self) -> None:
        for stream in self.streams:
            stream.synchronize()


def find_seconds(action: Callable[[], None], wait: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def measure(link: Link, count: int, block_bytes: int) -> Row:
    products_s = find_seconds(link.multiply, torch.cuda.synchronize)
    beside: list[float] = []
    ends: list[float] = []

    def run_beside() -> None:
        done = torch.cuda.Event()
        start = time.perf_counter()
        link.copy(count, link.fetch, link.store)
        link.multiply()
        done.record()
        done.synchronize()
        ends.append(time.perf_counter() - start)
        link.wait()
        beside.append(time.perf_counter() - start)

    find_seconds(run_beside, torch.cuda.synchronize)
    return Row(
        blocks=count,
        bytes=block_bytes,
        fetch_s=find_seconds(lambda: link.copy(count, link.fetch), link.wait),
        store_s=find_seconds(lambda: link.copy(count, link.store), link.wait),
        both_s=find_seconds(lambda: link.copy(count, link.fetch, link.store), link.wait),
        beside_s=statistics.median(beside[1:]),
        slowdown=statistics.median(ends[1:]) / products_s,
    )


def fit(rows: Sequence[Row], seconds: Callable[[Row], float]) -> tuple[float, float]:
    """Return the latency in seconds, and gigabytes per second. Relative errors count."""
    sizes = np.array([row.blocks * row.bytes for row in rows], dtype=np.float64)
    times = np.array([seconds(row) for row in rows])
    terms = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    (latency_s, byte_s), *_ = np.linalg.lstsq(terms, np.ones_like(times), rcond=None)
    return float(latency_s), 1 / float(byte_s) / 1e9


def tabulate(rows: Sequence[Row], title: str) -> Table:
    table = Table("blocks", "fetch", "store", "both ways, each", "beside products", "products slower", title=title)
    for row in rows:
        rates = (f"{row.gb_s(seconds):.1f}" for seconds in (row.fetch_s, row.store_s, row.both_s, row.beside_s))
        table.add_row(f"{row.blocks:,}", *rates, f"{row.slowdown:.2f} times")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="shape:llama-3.1-8b")
    parser.add_argument("--block-size", type=int, default=16)
    options = parser.parse_args(arguments)
    config = AutoConfig.from_pretrained(resolve_model(options.model).path)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    piece_bytes = 2 * 2 * config.num_key_value_heads * head_dim * options.block_size
    block_bytes = piece_bytes * config.num_hidden_layers
    link = Link(config.num_hidden_layers, piece_bytes, max(COUNTS))
    rows = [measure(link, count, block_bytes) for count in COUNTS]
    fits = {"fetch": fit(rows, lambda row: row.fetch_s), "store": fit(rows, lambda row: row.store_s)}
    console = Console(width=100)
    console.print(
        tabulate(rows, f"{torch.cuda.get_device_name()}, {options.model}, {block_bytes:,} bytes a block, GB/s")
    )
    for name, (latency_s, gb_s) in fits.items():
        console.print(f"{name}: {1000 * latency_s:.2f} ms and {gb_s:.1f} GB/s")
    options.out.write_text(json.dumps({"rows": [asdict(row) for row in rows], "fits": fits}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
