"""The simulated tables of docs/results.md: each is a set of `agentcache simulate` commands, run and put side by side.

python benchmarks/simulations.py claude-code --data FOLDER_OF_TRACES --out DIR
python benchmarks/simulations.py lifespan-window --data FOLDER_OF_TRACES --out DIR
python benchmarks/simulations.py sensitivity --data FOLDER_OF_TRACES --out DIR
python benchmarks/simulations.py end-to-end --data FILE_OF_DOCUMENTS [FILE ...] --out DIR

A command whose folder holds a summary already is not run again, so a table that broke off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

CLAUDE_CODE_SIZES = (200_000, 400_000, 800_000)
CLAUDE_CODE = ("--jobs", "32", "--max-context", "65536", "--model", "llama-3.1-8b", "--gpu", "h200", "--seed", "0")
# About the paper's 300 requests.
CONVERSATION = ("--jobs", "50", "--turns", "6", "--seed", "0")
# Of the paper's Table 1: GPUs and tokens of cache for each model.
MODELS = {"llama-3.1-8b": (1, 487_744), "llama-3.1-70b": (4, 505_152)}
DISPERSIONS = {"low": 5, "high": 10}
RATES = {"llama-3.1-8b": (0.02, 0.05), "llama-3.1-70b": (0.01, 0.025)}


@dataclass(frozen=True, slots=True)
class Case:
    """One command, and what its rows are labelled with. `suffix` is put behind its policies' names."""

    labels: Mapping[str, object]
    arguments: tuple[str, ...]
    suffix: str = ""

    @property
    def folder(self) -> str:
        words = [*map(str, self.labels.values()), self.suffix, *self.policies]
        return "-".join("".join(c if c.isalnum() else "." for c in word) for word in words if word)

    @property
    def policies(self) -> list[str]:
        return [value for flag, value in zip(self.arguments, self.arguments[1:], strict=False) if flag == "--policy"]


def _policies(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--policy", name))


def list_claude_code(data: Sequence[str]) -> Iterator[Case]:
    for tokens in CLAUDE_CODE_SIZES:
        labels = {"cache": f"{tokens // 1000}k"}
        run = (f"agent_traces:{data[0]}", *CLAUDE_CODE, "--kv-tokens", str(tokens))
        yield Case(labels, (*run, *_policies("lru", "max-score", "pensieve", "asymcache", "belady-cost")))
        yield Case(
            labels, (*run, *_policies("asymcache", "pensieve"), "--agentcache", "segments.enabled=false"), " −MSA"
        )
        yield Case(labels, (*run, *_policies("lru", "belady-cost"), "--agentcache", "segments.enabled=true"), " +MSA")


def list_lifespan_window(data: Sequence[str]) -> Iterator[Case]:
    run = (f"agent_traces:{data[0]}", *CLAUDE_CODE, "--kv-tokens", "400000", *_policies("asymcache"))
    # Within 1e6 λ hardly moves; the default lets it go wherever the window's mean says.
    for limit in ("1e6", "1e300"):
        for window in (10, 100, 1_000, 10_000):
            knobs = ("--agentcache", f"lifespan_window={window}", "--agentcache", f"lambda_limit={limit}")
            yield Case({"λ limit": limit, "window": window}, (*run, *knobs))


def list_sensitivity(data: Sequence[str]) -> Iterator[Case]:
    values: dict[str, tuple[float, ...]] = {
        "lifespan_s": (15, 60, 240),
        "reuse_probability": (0.1, 0.5, 0.9),
        "slope_ratio": (2, 40, 100),
    }
    for knob, settings in values.items():
        for value in settings:
            run = (f"agent_traces:{data[0]}", *CLAUDE_CODE, "--kv-tokens", "400000", *_policies("asymcache"))
            yield Case({"knob": knob, "value": value}, (*run, "--agentcache", f"{knob}={value}"))


def list_end_to_end(data: Sequence[str]) -> Iterator[Case]:
    for path in data:
        for model, (gpus, tokens) in MODELS.items():
            for dispersion, ratio in DISPERSIONS.items():
                for rate in RATES[model]:
                    labels = {
                        "data": Path(path).stem[:12],
                        "model": model,
                        "dispersion": dispersion,
                        "sessions/s": rate,
                    }
                    target = ("--model", model, "--gpu", "h20", "--tensor-parallel-size", str(gpus))
                    load = ("--kv-tokens", str(tokens), "--rate", str(rate), "--dispersion", str(ratio), *CONVERSATION)
                    run = (f"conversation:{path}", *target, *load)
                    yield Case(labels, (*run, *_policies("lru", "max-score", "pensieve", "asymcache")))
                    unchunked = ("--agentcache", "chunking.enabled=false")
                    yield Case(labels, (*run, *_policies("asymcache"), *unchunked), " −chunking")
                    # The 99th percentile of Gamma gaps with CV 0.25 is 1.67 times their mean.
                    lifespan = ("--agentcache", f"lifespan_s={1.67 * ratio / rate:.0f}")
                    yield Case(labels, (*run, *_policies("asymcache"), *lifespan), " L=P99")


TABLES: dict[str, Callable[[Sequence[str]], Iterator[Case]]] = {
    "claude-code": list_claude_code,
    "lifespan-window": list_lifespan_window,
    "sensitivity": list_sensitivity,
    "end-to-end": list_end_to_end,
}
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "token hits (%)": lambda one: f"{100 * one['token_hit_rate']:.1f}",
    "request hits (%)": lambda one: f"{100 * one['request_hit_rate']:.1f}",
    "recomputed tokens": lambda one: f"{one['recomputed_tokens']:,}",
    "prefill (s)": lambda one: f"{one['prefill_s']:.0f}",
    "TTFT mean (s)": lambda one: f"{one['ttft_s']['mean']:.2f}",
    "TPOT mean (ms)": lambda one: f"{1000 * one['tpot_s']['mean']:.1f}",
    "job mean (s)": lambda one: f"{one['job_latency_s']['mean']:.1f}",
    "job P90 (s)": lambda one: f"{one['job_latency_s']['p90']:.1f}",
}


def run_case(case: Case, out: Path) -> dict[str, Any]:
    """The figures of each policy. Raises RuntimeError with what the command said if it failed."""
    folder = out / case.folder
    if not (folder / "summary.json").exists():
        command = [sys.executable, "-m", "agentcache", "simulate", *case.arguments]
        done = subprocess.run(
            [*command, "--out", str(folder), "--overwrite"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}\n{done.stderr.strip()}")
    policies: dict[str, Any] = json.loads((folder / "summary.json").read_text())["policies"]
    return policies


def write_table(cases: Sequence[Case], results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    head = [*cases[0].labels, "policy", *COLUMNS]
    rows = [
        [*map(str, case.labels.values()), policy + case.suffix, *(cell(figures) for cell in COLUMNS.values())]
        for case, result in zip(cases, results, strict=True)
        for policy, figures in result.items()
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--data", nargs="+", required=True, metavar="PATH")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="one folder a command is put in here")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="commands side by side (default 2)")
    arguments = parser.parse_args()
    cases = list(TABLES[arguments.table](arguments.data))
    with ThreadPoolExecutor(arguments.at_once) as pool:
        runs = pool.map(lambda case: run_case(case, arguments.out), cases)
        results = list(track(runs, arguments.table, len(cases), console=Console(stderr=True)))
    table = write_table(cases, results)
    (arguments.out / f"{arguments.table}.md").write_text(table + "\n")
    print(table)  # noqa: T201


if __name__ == "__main__":
    main()
