"""The options that say which jobs to run, as replay and simulate take them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import get_args

from agentcache.jobs.settings import WORKLOADS, JobSettings, write_usage
from workloads.arrivals import ArrivalKind


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the workload and the options of its jobs, by the names of JobSettings."""
    usage = "; ".join(f"{write_usage(kind)}: {workload.summary}" for kind, workload in WORKLOADS.items())
    parser.add_argument("workload", metavar="WORKLOAD", help=usage)
    jobs = parser.add_argument_group("jobs")
    jobs.add_argument("--jobs", type=int, help="how many (default: 24 of bfcl, all that a file has)")
    jobs.add_argument("--rate", type=float, help="jobs per second" + _defaults("rate"))
    jobs.add_argument("--arrival", choices=get_args(ArrivalKind), help="pattern of arrivals" + _defaults("arrival"))
    jobs.add_argument("--cv", type=float, help="coefficient of variation of gamma gaps" + _defaults("cv"))
    jobs.add_argument("--scale", type=float, help="factor on the recorded sizes, in tokens (default 1)")
    jobs.add_argument("--seed", type=int, default=0, help="of jobs, arrivals, tool times and engine (default 0)")
    jobs.add_argument("--results", type=Path, metavar="FILE", help="bfcl: an official result file to replay instead")
    jobs.add_argument(
        "--tool-latency",
        help="where a recording has none: seconds, lognormal:MEAN,SD, exponential:MEAN or tracelab, Claude Code's, "
        "mostly short and some of minutes (default bfcl: mean 1.9 s, deviation 2.1 s)",
    )
    _add_session_arguments(jobs)
    _add_lane_arguments(jobs)


def _add_session_arguments(jobs: argparse._ArgumentGroup) -> None:
    jobs.add_argument(
        "--max-context", type=int, metavar="N", help="agent_traces, recording: end a session before it exceeds N tokens"
    )
    jobs.add_argument(
        "--max-gap",
        type=float,
        metavar="S",
        dest="max_gap_s",
        help="longest pause within a session" + _defaults("max_gap_s"),
    )
    jobs.add_argument(
        "--dispersion",
        type=float,
        metavar="R",
        help="rate of sessions over the rate of turns in a session" + _defaults("dispersion"),
    )


def _add_lane_arguments(jobs: argparse._ArgumentGroup) -> None:
    jobs.add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        metavar="N",
        help="agent_traces: a closed loop of N lanes, each of which begins a session when its last has ended; "
        "several numbers run one after another, into --out/lanes-N",
    )
    jobs.add_argument(
        "--duration", type=float, metavar="S", dest="duration_s", help="seconds to measure such a loop (default 1800)"
    )
    jobs.add_argument(
        "--warm-up", type=int, metavar="N", help="requests of each lane after the first, before that (default 10)"
    )


def read_jobs(options: argparse.Namespace) -> JobSettings:
    """Read what `add_arguments` added; of several numbers of lanes the first."""
    given = {each.name: getattr(options, each.name) for each in fields(JobSettings)}
    lanes = options.concurrency
    return JobSettings(**{**given, "concurrency": lanes[0] if lanes else None})


def lead_with_workload(arguments: Sequence[str]) -> list[str]:
    """Move a workload that follows a list of numbers to the front: argparse would take it for one of them."""
    for place, word in enumerate(arguments[1:], 1):
        if word.partition(":")[0] in WORKLOADS and arguments[place - 1].isdecimal():
            return [arguments[0], word, *arguments[1:place], *arguments[place + 1 :]]
    return list(arguments)


def _defaults(option: str) -> str:
    """Collect what the workloads take for an option that is not given."""
    taken = {kind: workload.options[option] for kind, workload in WORKLOADS.items() if option in workload.options}
    values = (f"{kind}: {'as recorded' if value is None else value}" for kind, value in taken.items())
    return f" ({', '.join(values)})"
