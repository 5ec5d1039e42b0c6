"""Engines of one host under the same replays: chosen by their server, by routers in front of it, and each alone.

    python benchmarks/replicas.py --out runs/replicas --kv-tokens 400000 \\
        --load knee 247,248,249,250 'bfcl --jobs 60 --rate 1.3 --arrival poisson --scale 1' \\
        --row agentcache --row agentcache+alone --row vllm --row vllm+sticky_least_loaded -- \\
        --block-size 16 --num-gpu-blocks-override 25001
    python benchmarks/replicas.py --model tiny --gpu cpu --engines 2 --out runs/replicas --kv-tokens 38272 \\
        --load small 0,1 'bfcl --jobs 2 --scale 0.1' --row agentcache --row vllm+programs -- \\
        --num-gpu-blocks-override 300

A load is a name, the seeds of replays that run at once, and what `agentcache replay` gets. A row is POLICY, one server
with vLLM's data parallelism; POLICY+ROUTER, vllm-router in front of its engines, whose policy ROUTER is, or `programs`
for its program-level scheduling; or POLICY+alone, each replay at an engine of its own. It runs under each load, or with
LOAD: in front under that one. Options behind -- are the servers', those of --serve only those of a policy.

Rows run in their order, and one server at a time: keep those of a policy together. Rows that OUT has are not run again.
None begins that could not end in time. `busy` is the share of the time in which a kernel ran, as NVML says once a
second, over all GPUs, from the first request to the last, or while a closed loop is measured. docs/reproduce.md has
the commands of families of sub-agents, and of three engines with CPU caches.
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

from family_figures import read_homes
from gpu_watch import GpuWatch, Sample
from row_figures import count_computed, describe, measure_busy, write_markdown
from server_fleet import CPU, ROUTERS, Fleet

from agentcache.report.events import EVENTS_FILE

ALONE = "alone"
# Engines write what they record within half a second.
_RECORD_S = 1.0
_LOOK_S = 1.0


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
    def read(cls, text: str, loads: Mapping[str, Load]) -> list[Row]:
        """Read a row, or one of each load. Raises SystemExit for what is no row."""
        load, colon, rest = text.rpartition(":")
        policy, _, router = rest.partition("+")
        if colon and load not in loads:
            sys.exit(f"--row {text}: before : give one of {', '.join(loads)}")
        if router and router not in (ALONE, *ROUTERS):
            sys.exit(f"--row {text}: behind + give one of {', '.join((ALONE, *ROUTERS))}")
        return [cls(loads[name], policy, router or None) for name in ([load] if colon else loads)]

    @property
    def name(self) -> str:
        return f"{self.load.name}-{self.policy}" + (f"+{self.router}" if self.router else "")

    @property
    def vllm_router(self) -> str | None:
        """The kind of vllm-router that stands in front of the engines, None if none does."""
        return None if self.router == ALONE else self.router

    def find_folders(self, out: Path) -> list[Path]:
        """Find where the replays of the row are."""
        return [out / f"{self.name}-{seed}" for seed in self.load.seeds]

    def find_figures(self, out: Path) -> Path:
        """Find what is only known while the row runs; there once the row has been measured."""
        return out / f"{self.name}.json"


def main() -> None:
    """Run the rows, each with empty caches, and print a table of those that are there."""
    own, server_options = _split(sys.argv[1:])
    options = _parse(own)
    end_s = time.monotonic() + options.limit_s
    loads = {load.name: load for load in (Load.read(*each) for each in options.load)}
    rows = [row for text in options.row for row in Row.read(text, loads)]
    own_options = {policy: shlex.split(words) for policy, words in options.serve}
    options.out.mkdir(parents=True, exist_ok=True)
    # So that the servers end with this process, also when its time is over.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    fleet = Fleet(options.out, options.model, options.engines, server_options, own_options, options.gpu)
    with closing(fleet):
        for row in rows:
            if row.find_figures(options.out).exists():
                continue
            if time.monotonic() + options.row_s > end_s:
                sys.stdout.write(f"{row.name}: left out, as it may take {options.row_s:.0f} s (--row-s)\n")
                break
            run_row(fleet, row, options)
            write_table(rows, options.out)
    sys.stdout.write(write_table(rows, options.out))


def run_row(fleet: Fleet, row: Row, options: argparse.Namespace) -> None:
    """Measure one row, and keep what its replays do not know; nothing of one that took too long."""
    began_s = time.monotonic()
    server = fleet.serve(row.policy, is_routed=row.vllm_router is not None)
    url = server if row.vllm_router is None else fleet.route(row.vllm_router, server, options.kv_tokens)
    before, known = count_computed(server), read_homes(fleet.recording, options.engines)
    busy = replay(row, url, options, began_s + options.row_s)
    if row.vllm_router is not None:
        fleet.end_router()
    took = f"{row.name}: {time.monotonic() - began_s:.0f} s"
    if busy is None:
        sys.stdout.write(f"{took}; cut off, and not in the table: give it more by --row-s\n")
        return
    time.sleep(_RECORD_S)
    homes = read_homes(fleet.recording, options.engines)
    figures = {
        "computed_tokens": [after - done for after, done in zip(count_computed(server), before, strict=True)],
        "homes": {name: sorted(engines) for name, engines in homes.items() if name not in known},
        "busy": measure_busy(busy, row.find_folders(options.out)),
    }
    row.find_figures(options.out).write_text(json.dumps(figures))
    sys.stdout.write(f"{took}\n")
    sys.stdout.flush()


def replay(row: Row, url: str, options: argparse.Namespace, end_s: float) -> list[Sample] | None:
    """Run a replay for each seed, all at once. Return how busy GPUs were, or None if the time was over first."""
    watch, processes = GpuWatch(0 if options.gpu == CPU else options.engines), []
    for number, (seed, folder) in enumerate(zip(row.load.seeds, row.find_folders(options.out), strict=True)):
        command = [*(sys.executable, "-m", "agentcache", "replay"), *row.load.replay, "--seed", str(seed)]
        command += ["--base-url", f"{url}/v1", "--tokenizer", options.model, "--overwrite", "--out", str(folder)]
        if row.router == ALONE:
            command += ["--header", f"X-data-parallel-rank:{number % options.engines}"]
        with (options.out / f"replay-{row.name}-{seed}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    while (running := [process for process in processes if process.poll() is None]) and time.monotonic() < end_s:
        watch.look()
        time.sleep(_LOOK_S)
    for process in running:
        # It writes its report of the jobs that have ended.
        process.send_signal(signal.SIGINT)
        process.wait()
    if running:
        return None
    if not all((folder / EVENTS_FILE).exists() for folder in row.find_folders(options.out)):
        sys.exit(f"{row.name}: a replay was refused; see {options.out}/replay-{row.name}-*.log")
    return watch.samples


def write_table(rows: Sequence[Row], out: Path) -> str:
    """Return the rows that are there in Markdown, and keep them in table.md."""
    done = [row for row in rows if row.find_figures(out).exists()]
    seen = [json.loads(row.find_figures(out).read_text()) for row in done]
    table = [describe(row.name, row.find_folders(out), each) for row, each in zip(done, seen, strict=True)]
    text = write_markdown(table)
    (out / "table.md").write_text(text)
    return text


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", action="append", required=True, nargs=3, metavar=("NAME", "SEEDS", "REPLAY"))
    parser.add_argument("--row", action="append", required=True, metavar="[LOAD:]POLICY[+ROUTER]")
    parser.add_argument("--serve", action="append", default=[], nargs=2, metavar=("POLICY", "OPTIONS"))
    parser.add_argument("--model", default="shape:llama-3.1-8b")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--gpu", default="h200", help="cpu for vLLM's CPU backend")
    parser.add_argument("--kv-tokens", type=int, help="of an engine, for the router; the servers have their own option")
    parser.add_argument("--row-s", type=float, default=600.0, help="what a row may take, its server's start included")
    parser.add_argument("--limit-s", type=float, default=1800.0, help="within which all rows that begin end")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
