"""Time to first token when cached blocks lie behind gaps: stock prefix caching beside multi-segment reuse.

python benchmarks/msa.py --out msa.json [--model shape:llama-3.1-8b] [--prompts N ...] [--repeats N] [-- vLLM options]
python benchmarks/msa.py --out msa.json --tiny

One request at a time on one engine in this process. Of each prompt the same share is computed in every row but "cold"
and "suffix, stock": behind the cached blocks in "prefix"; in the others the last 128 tokens are new, and the rest of
the share is missing in front of cached blocks. TTFT is from the request's arrival, hashing included; `steps_ms` is
what of it the engine's steps take. The floor is what the computed tokens' matrix products and attention would take at
the rate of a large matrix product, measured in the same process. "two steps": the step's token limit is set to the
gap (or to an even part of it), so that the fill requests have steps of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.platforms import current_platform

from agentcache.errors import InputError
from agentcache.models.catalog import SHAPE_PREFIX
from agentcache.models.shapes import SHAPES, TINY, Shape
from agentcache.profile.bench_engine import BenchEngine, Timing, make_bench_config

NEW_TOKENS = 128
MISSING = (0.25, 0.5)
SEGMENTS = 3
MAX_GAPS = 8
SEED = 0
COLUMNS = ("prompt", "missing", "case", "ttft_ms", "steps_ms", "steps", "rows", "computed", "floor_ms", "ratio")


@dataclass(frozen=True)
class Case:
    """`kept` are the cached intervals of the prompt. `step_tokens` limits a step; None leaves it as it is."""

    name: str
    kept: tuple[tuple[int, int], ...]
    max_gaps: int = MAX_GAPS
    step_tokens: int | None = None


def make_cases(prompt: int, missing: float, block: int, step_tokens: int) -> list[Case]:
    """The rows of one setting. Intervals are whole blocks."""
    share = round(prompt * missing) // block * block
    gap = share - NEW_TOKENS
    end = (prompt - NEW_TOKENS) // block * block
    suffix = ((gap, end),)
    return [
        Case("cold", ()),
        Case("prefix", ((0, prompt - share),)),
        Case("suffix, stock", suffix, max_gaps=0),
        Case("suffix, two steps", suffix, step_tokens=split_evenly(gap, step_tokens)),
        Case("suffix, one step", suffix),
        Case(f"{SEGMENTS} segments", make_segments(gap, end, block)),
    ]


def split_evenly(gap: int, step_tokens: int) -> int:
    """The largest part of the gap that a step takes and that leaves no rest."""
    return next(gap // parts for parts in range(1, gap + 1) if gap % parts == 0 and gap // parts <= step_tokens)


def make_segments(gap: int, end: int, block: int) -> tuple[tuple[int, int], ...]:
    """Make gaps of equal size, with cached segments of equal size behind; rests of blocks go to the first of each."""
    gaps, kept = divide(gap // block), divide((end - gap) // block)
    if not gaps[-1] or not kept[-1]:
        raise SystemExit(f"a prompt of {end} tokens is too short for {SEGMENTS} segments of {block}-token blocks")
    segments, position = [], 0
    for missing, cached in zip(gaps, kept, strict=True):
        segments.append((block * (position + missing), block * (position + missing + cached)))
        position += missing + cached
    return tuple(segments)


def divide(blocks: int) -> list[int]:
    part, rest = divmod(blocks, SEGMENTS)
    return [part + rest, *[part] * (SEGMENTS - 1)]


def measure_matrix_rate() -> float:
    """FLOP/s of a large matrix product, in the type that the engine computes in; the best of several."""
    on_cpu = current_platform.is_cpu()
    size, dtype, device = (1024, torch.float32, "cpu") if on_cpu else (8192, torch.bfloat16, "cuda")
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    wait: Callable[[], None] = (lambda: None) if on_cpu else torch.cuda.synchronize
    seconds = []
    for _ in range(20):
        wait()
        start_s = time.perf_counter()
        a @ b
        wait()
        seconds.append(time.perf_counter() - start_s)
    return 2 * size**3 / min(seconds)


def floor_s(timing: Timing, shape: Shape, flops_s: float) -> float:
    """Matrix products of every token computed, logits of every row, and attention of every pair."""
    rows = [row for step in timing.steps for row in step.rows]
    products = 2 * shape.geometry.active_parameters * sum(row.query for row in rows)
    logits = 2 * shape.hidden * shape.vocabulary * len(rows)
    attention = (
        4 * shape.fields["num_hidden_layers"] * shape.heads * shape.fields["head_dim"] * sum(row.pairs for row in rows)
    )
    return (products + logits + attention) / flops_s


def measure(bench: BenchEngine, tokens: Sequence[int], case: Case, repeats: int) -> Timing:
    """The repeat with the median TTFT."""
    if bench.scheduler.gap_filler is None:
        raise InputError("the engine reuses prefixes only; the log says why")
    bench.scheduler.gap_filler.max_gaps = case.max_gaps
    bench.limit_step(case.step_tokens)
    timings = []
    for _ in range(repeats + 1):
        bench.keep_only(tokens, case.kept)
        timings.append(bench.time_prefill(tokens))
        # All of the prompt is cached now, whatever was dropped before.
    # The first one compiles kernels for new shapes.
    middle = statistics.median_low([timing.ttft_s for timing in timings[1:]])
    return next(timing for timing in timings[1:] if timing.ttft_s == middle)


def describe(prompt: int, missing: float, case: Case, timing: Timing, limit_s: float) -> dict[str, Any]:
    rows = [row for step in timing.steps for row in step.rows]
    return {
        "prompt": prompt,
        "missing": missing,
        "case": case.name,
        "ttft_ms": round(1e3 * timing.ttft_s, 2),
        "steps_ms": round(1e3 * timing.steps_s, 2),
        "steps": len(timing.steps),
        "rows": len(rows),
        "computed": sum(row.query for row in rows),
        "floor_ms": round(1e3 * limit_s, 2),
        "ratio": round(timing.ttft_s / limit_s, 2),
    }


def run(bench: BenchEngine, shape: Shape, options: argparse.Namespace) -> None:
    flops_s = measure_matrix_rate()
    lines: list[dict[str, Any]] = []
    record = {
        "model": options.model,
        "device": "CPU backend" if current_platform.is_cpu() else str(current_platform.get_device_name()),
        "matrix_tflops": round(flops_s / 1e12, 2),
        "step_tokens": bench.step_tokens,
        "block_size": bench.block_size,
        "new_tokens": NEW_TOKENS,
        "repeats": options.repeats,
        "rows": lines,
    }
    print("".join(f"{name:>10}" if name != "case" else f"  {name:<24}" for name in COLUMNS))  # noqa: T201
    random = np.random.default_rng(SEED)
    for prompt in options.prompts:
        tokens = random.integers(1, 4096, prompt).tolist()
        bench.limit_step(None)
        bench.cache(tokens)
        for missing in MISSING:
            for case in make_cases(prompt, missing, bench.block_size, bench.step_tokens):
                timing = measure(bench, tokens, case, options.repeats)
                lines.append(describe(prompt, missing, case, timing, floor_s(timing, shape, flops_s)))
                options.out.write_text(json.dumps(record, indent=2) + "\n")
                print_line(lines[-1])
        bench.keep_only(tokens)


def print_line(line: dict[str, Any]) -> None:
    cells = (f"{line[name]:>10}" if name != "case" else f"  {line[name]:<24}" for name in COLUMNS)
    print("".join(cells), flush=True)  # noqa: T201


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON, written after every row")
    parser.add_argument("--model", default=SHAPE_PREFIX + "llama-3.1-8b", help="tiny, or shape:... (the default: 8b)")
    parser.add_argument("--prompts", type=int, nargs="+", metavar="N", help="tokens (default 1024 to 65536)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--step-tokens", type=int, metavar="N", help="--max-num-batched-tokens (default 16384)")
    parser.add_argument("--tiny", action="store_true", help="the tiny model and short prompts, to try it on a CPU")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.model = "tiny"
    options.prompts = options.prompts or ([1024, 4096] if options.tiny else [1024, 4096, 10240, 32768, 65536])
    options.step_tokens = options.step_tokens or (4096 if options.tiny else 16384)
    return options


def main() -> None:
    position = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parse_arguments(sys.argv[1:position])
    shape = TINY if options.model == "tiny" else SHAPES[options.model.removeprefix(SHAPE_PREFIX)]
    block_size = 32 if current_platform.is_cpu() else 16
    sizes = ["--max-num-batched-tokens", str(options.step_tokens), "--block-size", str(block_size)]
    bench = BenchEngine(make_bench_config(options.model, [*sizes, *sys.argv[position + 1 :]]))
    try:
        run(bench, shape, options)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
