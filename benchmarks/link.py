"""The link between a GPU and the CPU cache alone, as `agentcache profile` measures it beside everything else.

python benchmarks/link.py --out link.jsonl [--model shape:llama-3.1-8b] [--block-size 16]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agentcache.profile.bench_engine import make_bench_config
from agentcache.profile.link import measure_link


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and the fits, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="shape:llama-3.1-8b")
    parser.add_argument("--block-size", type=int, default=16)
    options = parser.parse_args(arguments)
    config = make_bench_config(options.model, ["--block-size", str(options.block_size)])
    return 1 if measure_link(config, options.out, Console(width=100)) is None else 0


if __name__ == "__main__":
    sys.exit(main())
