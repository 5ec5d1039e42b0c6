"""Runs the paper's 70B over four GPUs: a profile, agents, conversations, a test of replies; goes on where it stopped.

python benchmarks/paper_70b.py --documents loogle.jsonl --out runs/paper-70b --limit-s 1700
python benchmarks/paper_70b.py --documents loogle.jsonl --out runs/simulated-70b --simulate

The geometry of Llama-3.1-70B with random weights, on H200s. Each row is a command by itself, those that matter most
first, and all but the profile take their costs from it. A row that ends is a line of OUT/rows.jsonl, as in results/
(`wall_s`: seconds of the command), and is not run again. One that fails is a line of OUT/failed.jsonl, and is tried
again by the next start. With --simulate no GPU is needed: no profile, no test of replies.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from add_runs import find_vllm, make_runs
from paper_70b_commands import (
    PAPER_PROMPT,
    count_cpu_tokens,
    find_lifespan,
    find_profile,
    find_rate,
    list_words,
    read_costs,
    time_prompt,
)
from paper_70b_rows import PROFILE, REPLIES, SESSIONS, Row, choose_next, find_row, list_rows, make_table
from result_lines import COMMIT, Run

from agentcache.errors import InputError
from agentcache.option_parser import OptionParser
from agentcache.policy.gpus import GPUS
from agentcache.policy.presets import find_cost_profile
from agentcache.run.folder import find_versions

ROOT = Path(__file__).parents[1]


def say(text: str) -> None:
    print(f"{datetime.now():%H:%M:%S} {text}", flush=True)  # noqa: T201


def execute(words: Sequence[str], log: Path) -> None:
    """Run a command; `log` gets what it says. Raises RuntimeError with its last words if it fails."""
    with log.open("w", encoding="utf-8") as file:
        file.write(f"{shlex.join(words)}\n")
        file.flush()
        done = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        lines = [line.strip() for line in log.read_text(encoding="utf-8").splitlines()[1:]]
        # A replay ends with its report whatever came of it.
        told = [line for line in lines if line and not line.startswith(("↓", "report: "))]
        raise RuntimeError(f"exit status {done.returncode}: {' '.join(told[-3:])[-300:]} (see {log.name})")


def read_line(row: Row, options: Namespace, wall_s: float) -> Run:
    """Make the line of a row that has ended. Raises ValueError for one that measured nothing."""
    took = {"wall_s": round(wall_s, 1)}
    if row.workload in (PROFILE, REPLIES):
        figures = read_profiled(options) if row.workload == PROFILE else read_passed(options.out / f"{row.name}.log")
        return Run(
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            commit=options.commit,
            vllm=find_vllm(find_versions()),
            where=f"{'CPU' if options.gpu == 'cpu' else 'GPU'}: {options.gpu.upper()}",
            gpus=options.tensor_parallel_size,
            workload=row.workload,
            parameters={},
            model=options.model,
            seeds=None,
            policy=row.policy,
            flags=[],
            figures=figures | took,
            source=f"python {shlex.join(list_words(row, options))}",
        )
    summary = json.loads((options.out / row.name / "summary.json").read_text(encoding="utf-8"))
    flags = ["lazy CPU cache"] if row.cached and row.policy == "vllm" and not options.simulate else []
    # Costs by the data sheet, as of all that is simulated.
    flags += [] if options.simulate or find_profile(options) else ["without a profile"]
    about: dict[str, Any] = {"flag": flags, "cpu_tokens": count_cpu_tokens(row, options), "note": ""}
    if row.workload == SESSIONS:
        about["flag"] += [f"lifespan_s={find_lifespan(find_rate(options))}"]
    shared = {"commit": options.commit, "gpus": options.tensor_parallel_size, "workload": row.workload}
    (run,) = make_runs(summary, Namespace(**about, **shared))
    load = {"rate": find_rate(options), "dispersion": "low"} if row.workload == SESSIONS else {}
    return replace(run, parameters=load | run.parameters, figures=run.figures | took)


def read_profiled(options: Namespace) -> dict[str, float]:
    costs = read_costs(options)
    speed = options.scale * PAPER_PROMPT / time_prompt(costs, options)
    return {"prefill_tok_s": round(speed), "r_squared": round(costs.r_squared, 4)}


def read_passed(log: Path) -> dict[str, float]:
    last = log.read_text(encoding="utf-8").strip().splitlines()[-1]
    figures: dict[str, float] = {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|skipped)", last)}
    if not figures.get("passed"):
        raise ValueError(f"no test passed: {last}")
    return figures


def run_row(row: Row, options: Namespace) -> Run | None:
    """Run a row and write its line, or its error; None for one that failed."""
    began_s, began = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    try:
        execute([sys.executable, *list_words(row, options)], options.out / f"{row.name}.log")
        run = read_line(row, options, time.monotonic() - began_s)
    except Exception as error:
        # Whatever it is, others may do.
        told = str(error) if isinstance(error, RuntimeError | InputError) else repr(error)
        say(f"{row.name}: failed after {time.monotonic() - began_s:.0f} s: {told}")
        append(options.out / "failed.jsonl", {"row": row.name, "began": began, "error": told})
        return None
    append(options.out / "rows.jsonl", asdict(run))
    say(f"{row.name}: done in {run.figures['wall_s']:.0f} s")
    return run


def append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def run_all(rows: Sequence[Row], options: Namespace) -> str:
    """Run what has no line yet, as far as the time reaches, and return the table."""
    runs = {find_row(run): run for run in (Run(**line) for line in read_lines(options.out / "rows.jsonl"))}
    left, deadline_s = [row for row in rows if row not in runs], time.monotonic() + options.limit_s
    say(f"{len(rows) - len(left)} of {len(rows)} rows are there already")
    try:
        while (row := choose_next(left, runs, deadline_s - time.monotonic())) is not None:
            left.remove(row)
            say(f"{row.name}: begins; {len(left)} are behind it")
            if (run := run_row(row, options)) is not None:
                runs[row] = run
        say(f"no time left for: {', '.join(row.name for row in left)}" if left else "every row has been tried")
    finally:
        table = make_table(
            rows, runs, {line["row"]: line["error"] for line in read_lines(options.out / "failed.jsonl")}
        )
        print(f"\n{table}", flush=True)  # noqa: T201
    return table


def find_commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return done.stdout.strip()


def read_options() -> Namespace:
    parser = OptionParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, required=True, help="LooGLE's longdep_qa (docs/reproduce.md)")
    parser.add_argument("--out", type=Path, required=True, help="what ended is there, and is not run again")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin nothing that would end later")
    parser.add_argument("--simulate", action="store_true", help="on a modelled --gpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[510, 511])
    parser.add_argument("--commit", default=find_commit(), help="that runs, seven digits (default: git's)")
    trial = parser.add_argument_group("for a trial", "as in --model tiny --gpu cpu --tensor-parallel-size 1 --jobs 4")
    trial.add_argument("--model", choices=["llama-3.1-70b", "llama-3.1-8b", "tiny"], default="llama-3.1-70b")
    trial.add_argument("--gpu", choices=sorted(GPUS), default="h200")
    trial.add_argument("--tensor-parallel-size", type=int, default=4)
    trial.add_argument("--jobs", type=int, default=40, help="and conversations")
    trial.add_argument("--scale", type=float, default=1.0, help="factor on sizes and caches, at most 1")
    trial.add_argument("--faster", type=float, default=1.0, help="factor on the rates")
    trial.add_argument("--profile-s", type=float, default=240.0, help="seconds of measuring")
    return parser.parse_args()


def check(options: Namespace) -> None:
    """Raise InputError for options that cannot work."""
    for name in ("limit_s", "tensor_parallel_size", "jobs", "scale", "faster", "profile_s"):
        if not getattr(options, name) > 0:
            raise InputError(f"--{name.replace('_', '-')} {getattr(options, name):g}: give more than 0")
    if options.scale > 1:
        raise InputError(f"--scale {options.scale:g}: give at most 1")
    if not COMMIT.fullmatch(options.commit):
        raise InputError(f"--commit {options.commit!r}: give the seven digits of what runs, as git is not there to ask")
    if not options.documents.is_file():
        raise InputError(f"--documents {options.documents}: is no file; docs/reproduce.md says where it comes from")
    if options.simulate:
        find_cost_profile(options.model, options.gpu, options.tensor_parallel_size)


def main() -> None:
    try:
        options = read_options()
        check(options)
    except InputError as error:
        sys.exit(f"paper_70b.py: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    run_all(list_rows([*dict.fromkeys(options.seeds)], measured=not options.simulate), options)


if __name__ == "__main__":
    main()
