"""Engines of one host under the same replays: one server of all, routers in front of a server each, and each alone.

    python benchmarks/replicas.py --kv-tokens 400000 --seeds 247 248 249 250 --out runs/replicas --row agentcache \\
        --row vllm --row vllm+sticky_least_loaded --row vllm+programs --row agentcache+alone -- --block-size 16 \\
        --num-gpu-blocks-override 25001 --kv-cache-memory-bytes 52430897152 --gpu-memory-utilization 0.45
    python benchmarks/replicas.py --model tiny --gpu cpu --engines 2 --seeds 0 1 --jobs 2 --scale 0.1 \\
        --out runs/replicas --kv-tokens 38272 --row agentcache --row vllm+programs -- --num-gpu-blocks-override 300

As many replays as there are engines run at once, one a seed. A row is POLICY, one server with vLLM's data parallelism;
POLICY+ROUTER, a server an engine behind vllm-router, whose policy ROUTER is, or `programs` for its program-level
scheduling; or POLICY+alone, a replay to each engine. Servers of one kind of row start together and share the GPUs, so
two policies need twice the memory; those without requests are idle. Options behind -- are the servers'.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from server_fleet import ROUTERS, Fleet, empty_caches, find_router_port

from agentcache.report.events import read_events
from agentcache.report.policy_run import PolicyRun
from agentcache.report.summary import summarize_policy
from agentcache.report.table import NO_DATA

ALONE = "alone"
_HEADERS = (
    *("row", "jobs", "mean (s)", "each seed", "P90 (s)", "P99 (s)", "TTFT mean; P99; worst (s)", "TPOT (ms)"),
    *("hits (%)", "recomputed", "busiest"),
)


@dataclass(frozen=True)
class Row:
    """`router` None: one server of all engines."""

    policy: str
    router: str | None

    @classmethod
    def read(cls, text: str) -> Row:
        policy, _, router = text.partition("+")
        if router and router not in (ALONE, *ROUTERS):
            raise argparse.ArgumentTypeError(f"{text}: behind + give one of {', '.join((ALONE, *ROUTERS))}")
        return cls(policy, router or None)

    @property
    def name(self) -> str:
        return self.policy if self.router is None else f"{self.policy}+{self.router}"


def main() -> None:
    """Run the rows, those of one server first, and print a table after each."""
    own, server_options = _split(sys.argv[1:])
    options = _parse(own)
    options.out.mkdir(parents=True, exist_ok=True)
    for apart in (False, True):
        group = [row for row in options.row if (row.router is not None) is apart]
        if not group:
            continue
        with closing(Fleet(options.out, options.model, options.engines, server_options, options.gpu)) as fleet:
            run_group(fleet, group, apart, options)


def run_group(fleet: Fleet, rows: Sequence[Row], apart: bool, options: argparse.Namespace) -> None:
    """Start the servers of all rows, then measure one row after another, each with empty caches."""
    urls: dict[str, list[str]] = {}
    for row in rows:
        if row.policy not in urls and not apart:
            urls[row.policy] = fleet.serve_together(row.policy)
        elif row.policy not in urls:
            # Servers tell one router of sessions that are over: the first that is to be in front of them.
            routers = [each.router for each in rows if each.policy == row.policy and each.router not in (None, ALONE)]
            urls[row.policy] = fleet.serve_apart(row.policy, find_router_port(routers[0] or "") if routers else None)
    fleet.wait_for([url for each in urls.values() for url in each])
    for row in rows:
        servers = urls[row.policy]
        empty_caches(servers)
        targets = servers
        if row.router not in (None, ALONE):
            targets = [fleet.route(row.router or "", servers, options.kv_tokens)]
        before = count_computed(servers)
        began_s = time.monotonic()
        replay(row, targets, options)
        computed = [after - done for after, done in zip(count_computed(servers), before, strict=True)]
        (options.out / f"{row.name}.json").write_text(json.dumps({"computed_tokens": computed}))
        sys.stdout.write(f"{row.name}: {time.monotonic() - began_s:.0f} s\n")
        print_table(rows, options)


def replay(row: Row, urls: Sequence[str], options: argparse.Namespace) -> None:
    """Run a replay for each seed, all at once, until the last has ended or the time is over."""
    processes = []
    for number, seed in enumerate(options.seeds):
        url = urls[number % len(urls)]
        command = [*(sys.executable, "-m", "agentcache", "replay", options.workload)]
        command += ["--base-url", f"{url}/v1", "--tokenizer", options.model, "--arrival", "poisson", "--overwrite"]
        command += ["--jobs", str(options.jobs), "--rate", str(options.rate), "--seed", str(seed)]
        command += ["--out", str(find_folder(row, seed, options.out)), *shlex.split(options.replay_options)]
        if options.scale is not None:
            command += ["--scale", str(options.scale)]
        with (options.out / f"replay-{row.name}-{seed}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    end_s = time.monotonic() + options.limit_s
    for process in processes:
        try:
            process.wait(max(0.1, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            # It writes its report of the jobs that have ended.
            process.send_signal(signal.SIGINT)
            process.wait()


def find_folder(row: Row, seed: int, out: Path) -> Path:
    return out / f"{row.name}-{seed}"


def count_computed(urls: Iterable[str]) -> list[float]:
    """Count the prompt tokens that each engine has computed, in the order of servers and engines."""
    counts: list[float] = []
    for url in urls:
        by_engine: dict[str, float] = {}
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text):
            for sample in family.samples:
                if sample.name == "vllm:prompt_tokens_by_source_total" and sample.labels["source"] == "local_compute":
                    by_engine[sample.labels["engine"]] = by_engine.get(sample.labels["engine"], 0.0) + sample.value
        counts += [by_engine[engine] for engine in sorted(by_engine)]
    return counts


def print_table(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Print the rows that have been measured, in Markdown, and keep them in table.md."""
    lines = [" | ".join(_HEADERS), " | ".join("---:" for _ in _HEADERS)]
    for row in rows:
        if (options.out / f"{row.name}.json").exists():
            lines.append(" | ".join(describe(row, options)))
    text = "".join(f"| {line} |\n" for line in lines)
    (options.out / "table.md").write_text(text)
    sys.stdout.write(text)
    sys.stdout.flush()


def describe(row: Row, options: argparse.Namespace) -> list[str]:
    """Describe a row over the jobs of all its replays."""
    whole = PolicyRun()
    means = []
    for seed in options.seeds:
        own = PolicyRun()
        for event in read_events(find_folder(row, seed, options.out)):
            own.add(event)
            whole.add(event)
        means.append(_show(summarize_policy(own).job_latency_s.mean))
    found = summarize_policy(whole)
    latency_s, ttft_s = found.job_latency_s, found.ttft_s
    computed = json.loads((options.out / f"{row.name}.json").read_text())["computed_tokens"]
    return [
        row.name,
        f"{found.finished} of {found.jobs}",
        _show(latency_s.mean),
        " / ".join(means),
        _show(latency_s.p90),
        _show(latency_s.p99),
        f"{_show(ttft_s.mean, 2)}; {_show(ttft_s.p99)}; {_show(ttft_s.max)}",
        _show(found.tpot_s.mean, scale=1000),
        _show(found.token_hit_rate, scale=100),
        _show(found.recomputed_tokens, 0),
        f"{max(computed) / np.mean(computed):.2f}",
    ]


def _show(value: float | None, decimals: int = 1, scale: float = 1.0) -> str:
    return NO_DATA if value is None else f"{scale * value:,.{decimals}f}"


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row", action="append", required=True, type=Row.read, metavar="POLICY[+ROUTER]")
    parser.add_argument("--model", default="shape:llama-3.1-8b")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--gpu", default="h200", help="cpu for vLLM's CPU backend")
    parser.add_argument("--kv-tokens", type=int, help="of an engine, for the router; the servers have their own option")
    parser.add_argument("--workload", default="bfcl")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--jobs", type=int, default=60, help="of each replay")
    parser.add_argument("--rate", type=float, default=1.3, help="of each replay")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--replay-options", default="", help="further options of agentcache replay, in one argument")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="of a row")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
