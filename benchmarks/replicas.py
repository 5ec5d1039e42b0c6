"""Engines of one host under the same replays: chosen by their server, by routers in front of it, and each alone.

    python benchmarks/replicas.py --out runs/replicas --kv-tokens 400000 \\
        --load knee 247,248,249,250 'bfcl --jobs 60 --rate 1.3 --arrival poisson --scale 1' \\
        --row knee:agentcache --row knee:vllm --row knee:vllm+sticky_least_loaded --row knee:agentcache+alone -- \\
        --block-size 16 --num-gpu-blocks-override 25001 --kv-cache-memory-bytes 52430897152 \\
        --gpu-memory-utilization 0.45
    python benchmarks/replicas.py --model tiny --gpu cpu --engines 2 --out runs/replicas --kv-tokens 38272 \\
        --load small 0,1 'bfcl --jobs 2 --scale 0.1' --row small:agentcache --row small:vllm+programs -- \\
        --num-gpu-blocks-override 300

A load is a name, the seeds of replays that run at once, and what `agentcache replay` gets. A row is LOAD:POLICY, one
server with vLLM's data parallelism; LOAD:POLICY+ROUTER, vllm-router in front of its engines, whose policy ROUTER is,
or `programs` for its program-level scheduling; or LOAD:POLICY+alone, each replay at an engine of its own. Rows run in
their order. Servers of all policies start together and share the GPUs, so two policies need twice the memory; those
without requests are idle. Options behind -- are the servers'.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from server_fleet import ROUTERS, Fleet, empty_caches

from agentcache.report.events import EVENTS_FILE, read_events
from agentcache.report.policy_run import PolicyRun
from agentcache.report.summary import summarize_policy
from agentcache.report.table import NO_DATA

ALONE = "alone"
_HEADERS = (
    *("row", "jobs", "mean (s)", "each seed", "P90 (s)", "P99 (s)", "TTFT mean; P99; worst (s)", "TPOT (ms)"),
    *("hits (%)", "recomputed", "busiest", "tok/s of lanes"),
)


@dataclass(frozen=True)
class Load:
    """Replays that run at once, one a seed."""

    name: str
    seeds: tuple[int, ...]
    replay: tuple[str, ...]

    @classmethod
    def read(cls, name: str, seeds: str, replay: str) -> Load:
        return cls(name, tuple(map(int, seeds.split(","))), tuple(shlex.split(replay)))


@dataclass(frozen=True)
class Row:
    """`router` None: the server chooses the engine, by vLLM's balancer or by ours."""

    load: Load
    policy: str
    router: str | None

    @classmethod
    def read(cls, text: str, loads: Mapping[str, Load]) -> Row:
        """Raises SystemExit for what is no row."""
        load, _, rest = text.partition(":")
        policy, _, router = rest.partition("+")
        if load not in loads:
            sys.exit(f"--row {text}: before : give one of {', '.join(loads)}")
        if router and router not in (ALONE, *ROUTERS):
            sys.exit(f"--row {text}: behind + give one of {', '.join((ALONE, *ROUTERS))}")
        return cls(loads[load], policy, router or None)

    @property
    def name(self) -> str:
        return f"{self.load.name}-{self.policy}" + (f"+{self.router}" if self.router else "")

    @property
    def vllm_router(self) -> str | None:
        """The kind of vllm-router that stands in front of the engines, None if none does."""
        return None if self.router == ALONE else self.router


def main() -> None:
    """Run the rows, each with empty caches, and print a table after each."""
    own, server_options = _split(sys.argv[1:])
    options = _parse(own)
    loads = {load.name: load for load in (Load.read(*each) for each in options.load)}
    rows = [Row.read(text, loads) for text in options.row]
    options.out.mkdir(parents=True, exist_ok=True)
    with closing(Fleet(options.out, options.model, options.engines, server_options, options.gpu)) as fleet:
        servers = {row.policy: "" for row in rows}
        for policy in servers:
            servers[policy] = fleet.serve(policy, find_router(policy, rows))
        fleet.wait_for(list(servers.values()))
        for number, row in enumerate(rows):
            run_row(fleet, row, servers[row.policy], options)
            print_table(rows[: number + 1], options.out)


def find_router(policy: str, rows: Sequence[Row]) -> str | None:
    """Find the router that a policy's server tells of sessions that are over: the first that is in front of it."""
    return next((row.vllm_router for row in rows if row.policy == policy and row.vllm_router is not None), None)


def run_row(fleet: Fleet, row: Row, server: str, options: argparse.Namespace) -> None:
    """Measure one row, and keep how many prompt tokens each engine has computed."""
    empty_caches(server)
    url = server if row.vllm_router is None else fleet.route(row.vllm_router, server, options.kv_tokens)
    before = count_computed(server)
    began_s = time.monotonic()
    replay(row, url, options)
    computed = [after - done for after, done in zip(count_computed(server), before, strict=True)]
    (options.out / f"{row.name}.json").write_text(json.dumps({"computed_tokens": computed}))
    if row.vllm_router is not None:
        fleet.end_router()
    sys.stdout.write(f"{row.name}: {time.monotonic() - began_s:.0f} s\n")


def replay(row: Row, url: str, options: argparse.Namespace) -> None:
    """Run a replay for each seed, all at once, until the last has ended or the time is over."""
    processes = []
    for number, seed in enumerate(row.load.seeds):
        command = [*(sys.executable, "-m", "agentcache", "replay"), *row.load.replay, "--seed", str(seed)]
        command += ["--base-url", f"{url}/v1", "--tokenizer", options.model, "--overwrite"]
        command += ["--out", str(find_folder(row, seed, options.out))]
        if row.router == ALONE:
            command += ["--header", f"X-data-parallel-rank:{number % options.engines}"]
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
    if not all((find_folder(row, seed, options.out) / EVENTS_FILE).exists() for seed in row.load.seeds):
        sys.exit(f"{row.name}: a replay was refused; see {options.out}/replay-{row.name}-*.log")


def find_folder(row: Row, seed: int, out: Path) -> Path:
    return out / f"{row.name}-{seed}"


def count_computed(url: str) -> list[float]:
    """Count the prompt tokens that each engine has computed, in the order of the engines."""
    by_engine: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text):
        for sample in family.samples:
            if sample.name == "vllm:prompt_tokens_by_source_total" and sample.labels["source"] == "local_compute":
                by_engine[sample.labels["engine"]] = by_engine.get(sample.labels["engine"], 0.0) + sample.value
    return [by_engine[engine] for engine in sorted(by_engine)]


def print_table(rows: Sequence[Row], out: Path) -> None:
    """Print the rows in Markdown, and keep them in table.md."""
    lines = [" | ".join(_HEADERS), " | ".join("---:" for _ in _HEADERS)]
    lines += [" | ".join(describe(row, out)) for row in rows]
    text = "".join(f"| {line} |\n" for line in lines)
    (out / "table.md").write_text(text)
    sys.stdout.write(text)
    sys.stdout.flush()


def describe(row: Row, out: Path) -> list[str]:
    """Describe a row over the jobs of all its replays."""
    whole = PolicyRun()
    means, tokens_a_second = [], []
    for seed in row.load.seeds:
        own = PolicyRun()
        for event in read_events(find_folder(row, seed, out)):
            own.add(event)
            whole.add(event)
        alone = summarize_policy(own)
        means.append(_show(alone.job_latency_s.mean))
        tokens_a_second += [alone.throughput.total_tok_s] if alone.throughput else []
    found = summarize_policy(whole)
    latency_s, ttft_s = found.job_latency_s, found.ttft_s
    computed = json.loads((out / f"{row.name}.json").read_text())["computed_tokens"]
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
        _show(sum(tokens_a_second) if tokens_a_second else None, 0),
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
    parser.add_argument("--load", action="append", required=True, nargs=3, metavar=("NAME", "SEEDS", "REPLAY"))
    parser.add_argument("--row", action="append", required=True, metavar="LOAD:POLICY[+ROUTER]")
    parser.add_argument("--model", default="shape:llama-3.1-8b")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--gpu", default="h200", help="cpu for vLLM's CPU backend")
    parser.add_argument("--kv-tokens", type=int, help="of an engine, for the router; the servers have their own option")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="of a row")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
