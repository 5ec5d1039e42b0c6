"""Writes loads in which a few agents could starve the others, and reads from runs what the others got.

python benchmarks/unfair_loads.py write sub-agents --seed 550 --out unfair.jsonl
agentcache simulate recording:unfair.jsonl --kv-tokens 500000 --policy vllm --policy agentcache --out runs/unfair
python benchmarks/unfair_loads.py read runs/unfair

Strangers are 60 web-search agents, one a second. Beside them come 64 sub-agents of one context of 40,000 tokens; 51
siblings that each ask once; 500 sessions of one tenant, five a second; or one job that asks without a pause.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from converters.recorded import Request, Session, write_sessions

STRANGER = "stranger"
STRANGERS, STRANGERS_S = 60, 1.0
# When the others come, in seconds.
OTHERS_AT_S = 15.0


def make_agent(
    name: str,
    arrival_s: float,
    draw: np.random.Generator,
    *,
    begin: Sequence[int],
    turns: int,
    added: int,
    tool_s: float,
) -> Session:
    """An agent whose context grows by about `added` tokens a turn behind what it begins with."""
    prompt, requests = [*begin], []
    for turn in range(turns):
        prompt = prompt + draw_tokens(draw, int(added * draw.uniform(0.5, 1.5)))
        reply = draw_tokens(draw, int(draw.integers(100, 400)))
        last = turn == turns - 1
        wait_s = 0.0 if last else tool_s * float(draw.lognormal(0.0, 0.5))
        requests.append(Request(prompt, reply, () if last else ("search",), wait_s))
        prompt = prompt + reply
    return Session(name, arrival_s, requests)


def draw_tokens(draw: np.random.Generator, count: int) -> list[int]:
    return [int(each) for each in draw.integers(1000, 100_000, count)]


class Others(NamedTuple):
    """So many agents, `a_second` of them until all have come, that share the beginning of their contexts."""

    agents: int
    a_second: float
    shared_tokens: int
    turns: int
    added: int
    tool_s: float = 2.0


OTHERS = {
    "sub-agents": Others(64, 64.0, shared_tokens=40_000, turns=6, added=1500),
    "siblings": Others(51, math.inf, shared_tokens=20_000, turns=1, added=4000),
    "tenant": Others(500, 5.0, shared_tokens=2000, turns=3, added=2000),
    "endless": Others(1, 1.0, shared_tokens=8000, turns=70, added=1200, tool_s=0.01),
}


def make_others(kind: str, draw: np.random.Generator) -> list[Session]:
    others = OTHERS[kind]
    shared = draw_tokens(draw, others.shared_tokens)
    return [
        make_agent(
            f"{kind}-{each}",
            OTHERS_AT_S + each / others.a_second,
            draw,
            begin=shared,
            turns=others.turns,
            added=others.added,
            tool_s=others.tool_s,
        )
        for each in range(others.agents)
    ]


def write(kind: str, seed: int, path: Path) -> None:
    draw = np.random.default_rng(seed)
    system = draw_tokens(draw, 1000)
    arrivals_s = np.cumsum(draw.exponential(STRANGERS_S, STRANGERS))
    strangers = [
        make_agent(f"{STRANGER}-{number}", float(at), draw, begin=system, turns=8, added=3000, tool_s=1.9)
        for number, at in enumerate(arrivals_s)
    ]
    write_sessions(path, [*strangers, *make_others(kind, draw)], kind=f"unfair: {kind}")


def read(run: Path) -> None:
    """Print TTFT and job latency by policy, of strangers and of the others."""
    first_s: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    jobs_s: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        whose = STRANGER if STRANGER in str(event.get("job")) else "other"
        if event["type"] == "request":
            first_s[event["policy"], whose].append(event["first_token_s"] - event["sent_s"])
        elif event["type"] == "job":
            jobs_s[event["policy"], whose].append(event["finished_s"] - event["started_s"])
    sys.stdout.write(f"{'policy':24} {'whose':9} {'TTFT P50':>9} {'P99':>7} {'worst':>7} {'mean job':>9}  (s)\n")
    for (policy, whose), each in sorted(first_s.items()):
        mean_s = np.mean(jobs_s[policy, whose])
        middle, late, worst = np.percentile(each, (50, 99, 100))
        sys.stdout.write(f"{policy:24} {whose:9} {middle:9.2f} {late:7.2f} {worst:7.2f} {mean_s:9.1f}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    writes = commands.add_parser("write")
    writes.add_argument("kind", choices=OTHERS)
    writes.add_argument("--seed", type=int, default=0)
    writes.add_argument("--out", type=Path, required=True)
    writes.set_defaults(run=lambda given: write(given.kind, given.seed, given.out))
    reads = commands.add_parser("read")
    reads.add_argument("folder", type=Path)
    reads.set_defaults(run=lambda given: read(given.folder))
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
