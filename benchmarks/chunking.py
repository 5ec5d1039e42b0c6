"""Adaptive chunking off against on: how long running decodes wait while long prompts arrive.

python benchmarks/chunking.py --out chunking.json [--model shape:llama-3.1-8b] [--prefill-share 0.7] [-- vLLM options]
python benchmarks/chunking.py --out chunking.json --tiny

One engine in this process, the same load for every setting: `--decodes` requests decode from the start, each with its
own context; prompts of `--prompt` tokens arrive as a Poisson process of a fixed seed until the first of those decodes
has all its tokens. The rate is such that prefill alone would keep the engine busy for `--prefill-share` of the time.
`budget` is what chunking leaves a step for prompts beside that many decodes. TPOT is measured on the decodes of the
start: every gap between two tokens, and each request's mean gap. TTFT is of the prompts that arrive.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from vllm.platforms import current_platform

from agentcache.engine.chunking import prefill_budget
from agentcache.profile.bench_engine import BenchEngine, make_bench_config
from agentcache.tuning import Tuning

SEED = 0
# Off, then (threshold, floor) of adaptive chunking; agentcache's default is the third.
SETTINGS: tuple[tuple[int, int] | None, ...] = (None, (32, 1024), (16, 1024), (8, 1024), (4, 512))
TINY_SETTINGS: tuple[tuple[int, int] | None, ...] = (None, (2, 128))
ARRIVAL_OUTPUTS = 32
WARM_UP_STEPS = 20


@dataclass
class Load:
    """Prompts and their arrival times, in seconds from the moment when all decodes run."""

    contexts: list[list[int]]
    prompts: list[list[int]]
    arrivals_s: list[float]


@dataclass
class Observed:
    """Times of the tokens of each decode, and of arrival and first token of each prompt that came."""

    token_times_s: dict[str, list[float]]
    arrived_s: dict[str, float] = field(default_factory=dict)
    first_token_s: dict[str, float] = field(default_factory=dict)
    steps: int = 0


def make_load(options: argparse.Namespace, rate: float) -> Load:
    random = np.random.default_rng(SEED)
    arrivals_s = np.cumsum(random.exponential(1 / rate, options.max_arrivals)).tolist()
    return Load(
        contexts=[random.integers(1, 4096, options.context).tolist() for _ in range(options.decodes)],
        prompts=[random.integers(1, 4096, options.prompt).tolist() for _ in arrivals_s],
        arrivals_s=arrivals_s,
    )


def run_load(bench: BenchEngine, load: Load, outputs: int) -> Observed:
    """Until the first decode is through, and then until every prompt that came has its first token."""
    decodes = [bench.add(context, outputs) for context in load.contexts]
    bench.step_until(*decodes)
    for _ in range(WARM_UP_STEPS):
        bench.step()
    observed = Observed({request_id: [] for request_id in decodes})
    waiting = list(zip(load.arrivals_s, load.prompts, strict=True))
    start_s = time.perf_counter()
    loaded = True
    while loaded or observed.first_token_s.keys() != observed.arrived_s.keys():
        now_s = time.perf_counter() - start_s
        while loaded and waiting and waiting[0][0] <= now_s:
            due_s, prompt = waiting.pop(0)
            observed.arrived_s[bench.add(prompt, ARRIVAL_OUTPUTS)] = due_s
        outputs_of_step = bench.step()
        note_tokens(observed, outputs_of_step, time.perf_counter() - start_s, loaded)
        loaded = loaded and not any(outputs_of_step[name].finished for name in decodes if name in outputs_of_step)
    bench.abort([*decodes, *observed.arrived_s])
    bench.settle()
    return observed


def note_tokens(observed: Observed, outputs: dict[str, Any], now_s: float, loaded: bool) -> None:
    observed.steps += loaded and bool(outputs)
    for request_id in outputs:
        if request_id in observed.arrived_s:
            observed.first_token_s.setdefault(request_id, now_s)
        elif loaded:
            observed.token_times_s[request_id].append(now_s)


def summarise(setting: tuple[int, int] | None, observed: Observed) -> dict[str, Any]:
    gaps_s = [np.diff(times) for times in observed.token_times_s.values()]
    means_s = [float(gaps.mean()) for gaps in gaps_s]
    ttfts_s = [observed.first_token_s[name] - arrived_s for name, arrived_s in observed.arrived_s.items()]
    return {
        "threshold": setting and setting[0],
        "floor": setting and setting[1],
        **milliseconds("gap", np.concatenate(gaps_s).tolist(), (50, 99)),
        **milliseconds("tpot", means_s, (50, 99)),
        **milliseconds("ttft", ttfts_s, (50, 99)),
        "prompts": len(ttfts_s),
        "steps": observed.steps,
        "seconds": round(max(times[-1] for times in observed.token_times_s.values()), 1),
    }


def milliseconds(name: str, seconds: Sequence[float], percentiles: tuple[int, ...]) -> dict[str, float]:
    found = {f"{name}_mean_ms": round(1e3 * float(np.mean(seconds)), 2)}
    return found | {f"{name}_p{p}_ms": round(1e3 * float(np.percentile(seconds, p)), 2) for p in percentiles}


def find_prefill_s(bench: BenchEngine, prompt: int) -> float:
    """Of one prompt alone: the second fastest of four, because the first warms up."""
    random = np.random.default_rng(SEED + 1)
    return sorted(bench.time_prefill(random.integers(1, 4096, prompt).tolist()).ttft_s for _ in range(4))[1]


def run(bench: BenchEngine, options: argparse.Namespace) -> None:
    prefill_s = find_prefill_s(bench, options.prompt)
    rate = options.rate or options.prefill_share / prefill_s
    lines: list[dict[str, Any]] = []
    record = {
        "device": "CPU backend" if current_platform.is_cpu() else str(current_platform.get_device_name()),
        **{name: getattr(options, name) for name in ("model", "decodes", "context", "outputs", "prompt")},
        "prefill_alone_ms": round(1e3 * prefill_s, 1),
        "rate": round(rate, 3),
        "step_tokens": bench.step_tokens,
        "settings": lines,
    }
    load = make_load(options, rate)
    print(json.dumps({name: value for name, value in record.items() if name != "settings"}), flush=True)  # noqa: T201
    for setting in TINY_SETTINGS if options.tiny else SETTINGS:
        chunking = setting and Tuning(chunking_threshold=setting[0], chunking_floor=setting[1])
        bench.scheduler.step_limit.tuning = chunking
        bench.limit_step(None)
        if not bench.engine.reset_prefix_cache():
            raise SystemExit("the cache of the setting before could not be emptied")
        left = prefill_budget(chunking, options.decodes, bench.step_tokens) if chunking else None
        observed = run_load(bench, load, options.outputs)
        if len(observed.arrived_s) == len(load.prompts):
            raise SystemExit(f"the {len(load.prompts)} prompts ran out; give more --max-arrivals")
        lines.append({"budget": left, **summarise(setting, observed)})
        options.out.write_text(json.dumps(record, indent=2) + "\n")
        print_line(lines)


def print_line(lines: list[dict[str, Any]]) -> None:
    """The last line, the first one with a head."""
    if len(lines) == 1:
        print("".join(f"{name:>13}" for name in lines[0]))  # noqa: T201
    print("".join(f"{'off' if cell is None else cell:>13}" for cell in lines[-1].values()), flush=True)  # noqa: T201


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON, written after every setting")
    parser.add_argument("--model", default="shape:llama-3.1-8b", help="a name or path as for vllm serve (default 8b)")
    parser.add_argument("--decodes", type=int, default=64, metavar="N", help="running from the start (default 64)")
    parser.add_argument("--context", type=int, default=1024, metavar="N", help="tokens of each (default 1024)")
    parser.add_argument("--outputs", type=int, default=768, metavar="N", help="tokens of each (default 768)")
    parser.add_argument("--prompt", type=int, default=8192, metavar="N", help="tokens of what arrives (default 8192)")
    parser.add_argument("--prefill-share", type=float, default=0.7, metavar="S", help="of the time (default 0.7)")
    parser.add_argument("--rate", type=float, metavar="R", help="prompts a second instead")
    parser.add_argument("--max-arrivals", type=int, default=400, metavar="N", help="(default 400)")
    parser.add_argument("--step-tokens", type=int, default=8192, help="--max-num-batched-tokens (default 8192)")
    parser.add_argument("--tiny", action="store_true", help="the tiny model and little load, to try it on a CPU")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.model, options.prompt, options.step_tokens = "tiny", 1024, 1024
        options.decodes, options.context, options.outputs, options.max_arrivals = 8, 128, 96, 100
    return options


def main() -> None:
    position = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parse_arguments(sys.argv[1:position])
    sizes = ["--max-num-batched-tokens", str(options.step_tokens)]
    bench = BenchEngine(make_bench_config(options.model, [*sizes, *sys.argv[position + 1 :]]))
    try:
        run(bench, options)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
