"""How long `agentcache plan` takes: a made-up recording of a day, and seconds by 1,000 requests of one simulation.

    python benchmarks/plan_speed.py --requests 100000 --write day.jsonl      # then: time agentcache plan day.jsonl ...
    python benchmarks/plan_speed.py --simulate 3000 --policy vllm --policy agentcache [--profile]
    python benchmarks/plan_speed.py --simulate 3000 --sweep                 # all cells of a plan, one after the other

The agents are made up after Claude Code's: a system prompt that all share, turns that add some thousand tokens, short
replies, tools of seconds, and people who come back after minutes. Most come in the middle of the day.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import pstats
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentcache.plan.settings import Cell, PlanSettings
from agentcache.plan.stretch import find_busiest
from agentcache.plan.worker import Worker
from workloads.recording.line import VERSION
from workloads.recording.reader import read_recording
from workloads.recording.sessions import build_jobs

_BLOCK_TOKENS = 512
_SYSTEM_BLOCKS = 24
_MOST_TOKENS = 120_000
_DAY_S = 86_400.0
_TURNS = 24


def main() -> None:
    """Write a recording, or measure simulations of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--simulate", type=int, default=3_000, metavar="REQUESTS")
    parser.add_argument("--policy", action="append")
    parser.add_argument("--kv-tokens", type=int)
    parser.add_argument("--cpu-tokens", type=int, default=0)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    lines = make_day(options.requests, options.hours * 3600, options.seed)
    if options.write is not None:
        write_lines(options.write, lines)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day.jsonl"
        write_lines(path, lines)
        measure(path, options)


def make_day(requests: int, seconds: float, seed: int) -> list[dict[str, Any]]:
    """Make a recording's lines, in the order in which requests ended."""
    chance = random.Random(seed)
    lines: list[dict[str, Any]] = []
    session = 0
    while len(lines) < requests:
        session += 1
        # Most sessions begin about noon.
        began_s = min(max(chance.gauss(seconds / 2, seconds / 6), 0.0), seconds)
        lines += make_session(chance, session, began_s)
    return sorted(lines[:requests], key=lambda line: line["timestamp"] + line["latency_ms"])


def make_session(chance: random.Random, session: int, began_s: float) -> Iterator[dict[str, Any]]:
    """Make the requests of one session, whose prompts grow by each reply and what its tools gave."""
    now_s = began_s
    tokens = _SYSTEM_BLOCKS * _BLOCK_TOKENS + round(chance.lognormvariate(math.log(2_000), 0.8))
    for _ in range(1 + round(chance.expovariate(1 / _TURNS))):
        reply = 1 + round(chance.lognormvariate(math.log(150), 1.0))
        if tokens + reply > _MOST_TOKENS:
            return
        full = (tokens + reply) // _BLOCK_TOKENS
        ids = [*range(_SYSTEM_BLOCKS), *(1000 * session + block for block in range(_SYSTEM_BLOCKS, full))]
        prompt_blocks = -(-tokens // _BLOCK_TOKENS)
        # A block in part has an id of its own.
        in_part = [10**9 + 1000 * session + prompt_blocks + round(now_s * 1e3)] if prompt_blocks > full else []
        latency_s = 0.3 + 0.012 * reply
        calls = chance.random() < 0.85
        yield {
            "timestamp": round(now_s * 1e3, 3),
            "input_length": tokens,
            "output_length": reply,
            "hash_ids": [*ids, *in_part][:prompt_blocks],
            "reply_ids": ids[prompt_blocks:],
            "session": f"s{session}",
            "latency_ms": round(latency_s * 1e3, 3),
            "end": "calls" if calls else "answer",
            **({"called": [f"tool{chance.randrange(5)}"]} if calls else {}),
        }
        wait_s = chance.lognormvariate(math.log(4), 1.2) if calls else chance.lognormvariate(math.log(120), 1.0)
        now_s += latency_s + wait_s
        tokens += reply + round(chance.lognormvariate(math.log(1_000), 1.0))


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write them as a recording."""
    header = {
        "version": VERSION,
        "id": "made-up",
        "block_tokens": _BLOCK_TOKENS,
        "model": "llama-3.1-8b",
        "policy": "vllm",
        "started_at": "2026-01-01T00:00:00+00:00",
    }
    lines[0]["recording"] = header
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def measure(path: Path, options: argparse.Namespace) -> None:
    """Print the seconds of reading, preparing and simulating, in this process."""
    settings = PlanSettings(command="", recording=path, out=path.parent, model="llama-3.1-8b", gpu="h200")
    began_s = time.perf_counter()
    recording = read_recording(path)
    requests = list(find_busiest(recording.requests, options.simulate))
    _say(f"reading {len(recording.requests):,} requests: {time.perf_counter() - began_s:.1f} s")
    worker = Worker(settings, [])
    jobs = build_jobs(recording, requests, max_context=worker.find_max_tokens()).jobs
    began_s = time.perf_counter()
    worker = Worker(settings, jobs)
    _say(f"a worker's start: {time.perf_counter() - began_s:.1f} s, {len(jobs):,} jobs")
    total_s = 0.0
    for cell in settings.list_cells() if options.sweep else list_cells(options, settings.room):
        profiler = cProfile.Profile(time.process_time)
        began_s = time.process_time()
        outcome = profiler.runcall(worker.run, cell) if options.profile else worker.run(cell)
        seconds = time.process_time() - began_s
        total_s += seconds
        _say(f"{cell.policy}: {seconds:.1f} s, {1000 * seconds / len(requests):.2f} s by 1,000 requests\n{outcome}")
        if options.profile:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
    _say(f"all cells: {total_s:.1f} s, {1000 * total_s / len(requests):.2f} s by 1,000 requests")


def list_cells(options: argparse.Namespace, room: int) -> list[Cell]:
    """List a cell for each policy that was asked for."""
    tokens = (options.kv_tokens or room) // 16 * 16
    return [Cell(policy, tokens, options.cpu_tokens) for policy in options.policy or ("vllm", "agentcache")]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
