"""Lists the GPUs that costs are estimated for, by what their data sheets say."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data-sheet numbers: dense FLOP/s in `dtype`; bytes; bytes/s, of links in one direction.

    `link_s` is between GPUs of a host, `pcie_s` to the host's memory. `source` names the data sheet.
    `step_overhead_s` is what a step takes beside the model: scheduling, launches, sampling; a usual value with CUDA
    graphs. `step_tokens` and `step_rows` are the --max-num-batched-tokens and --max-num-seqs of vLLM's server on it.
    """

    flops_s: float
    bandwidth_s: float
    link_s: float
    memory_bytes: float
    pcie_s: float
    source: str
    step_overhead_s: float = 1e-3
    dtype: str = "bfloat16"
    step_tokens: int = 8192
    step_rows: int = 1024


def _read_gpus() -> dict[str, Gpu]:
    sheets = json.loads(Path(__file__).with_name("gpus.json").read_text(encoding="utf-8"))
    return {name: Gpu(**sheet) for name, sheet in sheets.items()}


GPUS = _read_gpus()


def match_gpu(device: str) -> str | None:
    """Find the GPU that a driver or a user calls so, as in "NVIDIA H200"; None when there is none.

    The words of its name stand in that, in any order; of several such GPUs it is the one with the most words.
    """
    words = set(re.findall(r"[a-z0-9]+", device.lower()))
    fitting = [gpu for gpu in GPUS if words.issuperset(gpu.split("-"))]
    return max(fitting, key=lambda gpu: gpu.count("-"), default=None)
