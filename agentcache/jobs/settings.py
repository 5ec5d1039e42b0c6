"""Describes which jobs to run: the options that replays and simulations share, and those of each workload."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from agentcache.errors import InputError, suggest
from workloads.bfcl.web_search import MAX_SCALE
from workloads.pacing import ArrivalKind, parse_tool_latency

Option = str | int | float | Path | None

_LEAST = {"jobs": 1, "max_context": 1, "max_gap_s": 0, "concurrency": 1, "warm_up": 0, "rollout": 1}
_ABOVE_ZERO = {
    "duration_s": "the seconds to measure",
    "rate": "jobs per second",
    "scale": "the factor on the recorded sizes",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """`options` maps the options that it takes, by their names in JobSettings, to their defaults.

    `path` says what follows the colon, empty if nothing does. `size_flag` names the option that makes jobs smaller.
    """

    summary: str
    options: Mapping[str, Option]
    size_flag: str = "--scale"
    path: str = ""


WORKLOADS: dict[str, Workload] = {
    "bfcl": Workload(
        "BFCL v4 web search", {"jobs": None, "rate": 0.5, "arrival": "poisson", "scale": 1.0, "tool_latency": "bfcl"}
    ),
    "recording": Workload(
        "your own traffic, as serve --record wrote it, or spans of OpenTelemetry",
        {"jobs": None, "max_context": None, "max_gap_s": None},
        size_flag="--max-context",
        path="a recording",
    ),
}

# Traces of others, which come in as recordings.
CONVERTED = ("agent_traces", "conversation", "mooncake", "bfcl_multi_turn", "tau_bench", "webdancer", "lmcache")

# A closed loop has no arrivals. Its defaults are AgentX's, which docs/closed-loop.md compares.
_CLOSED_LOOPS: dict[str, Workload] = {
    "recording": replace(
        WORKLOADS["recording"],
        options={
            "jobs": None,
            "concurrency": None,
            "duration_s": 1800.0,
            "warm_up": 10,
            "rollout": 1,
            "max_context": None,
            "max_gap_s": 300.0,
        },
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """One field per option, which the command line documents. None takes the workload's own value.

    `workload` is its name, and a colon and a path where it needs one. `rate` is jobs per second. With `concurrency`,
    the jobs are a closed loop of so many lanes; `rollout` samples of each session run in a row.
    """

    workload: str
    seed: int = 0
    jobs: int | None = None
    rate: float | None = None
    arrival: ArrivalKind | None = None
    scale: float | None = None
    tool_latency: str | None = None
    max_context: int | None = None
    max_gap_s: float | None = None
    concurrency: int | None = None
    duration_s: float | None = None
    warm_up: int | None = None
    rollout: int | None = None

    def check(self) -> None:
        """Raise InputError, which names the flag, for an option that cannot work. The path must exist."""
        if self.kind in CONVERTED:
            source = self.workload.partition(":")[2] or "PATH"
            raise InputError(
                f"workload {self.kind}: make a recording of it in a checkout of agentcache, with `python "
                f"benchmarks/convert.py {self.kind} {source} --out FILE.jsonl`, and give recording:FILE.jsonl"
            )
        if self.kind not in WORKLOADS:
            choices = ", ".join(map(write_usage, WORKLOADS))
            raise InputError(f"workload {self.kind}: unknown; choose from {choices}{suggest(self.kind, WORKLOADS)}")
        self._check_path()
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: give 0 or more")
        for name in _OPTIONS:
            if getattr(self, name) is not None:
                self._check_option(name, getattr(self, name))
        if self.tool_latency is not None:
            parse_tool_latency(self.tool_latency)
        if self.kind == "bfcl":
            self._check_bfcl()

    @property
    def kind(self) -> str:
        """Return the workload's name, without its path."""
        return self.workload.partition(":")[0]

    @property
    def path(self) -> Path:
        """The path, if the workload has one."""
        return Path(self.workload.partition(":")[2])

    @property
    def taken(self) -> Workload:
        """The workload's description, as a closed loop where it is one."""
        loops = _CLOSED_LOOPS if self.concurrency is not None else WORKLOADS
        return loops.get(self.kind, WORKLOADS[self.kind])

    def options(self) -> dict[str, Option]:
        """Return the workload's options, as given or by default."""
        return {
            name: default if getattr(self, name) is None else getattr(self, name)
            for name, default in self.taken.options.items()
        }

    @property
    def is_drawn(self) -> bool:
        """Whether the seed decides about jobs or their times; else all seeds give the same."""
        return self.kind != "recording" or self.concurrency is not None

    def _check_path(self) -> None:
        _, colon, path = self.workload.partition(":")
        if self.taken.path and not path:
            raise InputError(f"workload {self.kind}: needs a path, {write_usage(self.kind)}: {self.taken.path}")
        if colon and not self.taken.path:
            raise InputError(f"workload {self.workload}: {self.kind} takes no path; leave it out")
        if path and not self.path.exists():
            raise InputError(f"workload {self.kind}: there is no {path}; give {self.taken.path}")

    def _check_option(self, name: str, value: Any) -> None:
        flag = "--" + name.removesuffix("_s").replace("_", "-")
        if name not in self.taken.options:
            raise InputError(f"{flag}: {self._say_who_takes(name)}")
        if name in _LEAST and not (math.isfinite(value) and value >= _LEAST[name]):
            raise InputError(f"{flag} {value:g}: give at least {_LEAST[name]}")
        if name in _ABOVE_ZERO and not (math.isfinite(value) and value > 0):
            raise InputError(f"{flag} {value:g}: give a number above 0, {_ABOVE_ZERO[name]}")

    def _say_who_takes(self, name: str) -> str:
        if self.kind in _CLOSED_LOOPS and name in _CLOSED_LOOPS[self.kind].options:
            return "only with --concurrency"
        both = (*WORKLOADS.items(), *_CLOSED_LOOPS.items())
        takers = dict.fromkeys(kind for kind, workload in both if name in workload.options)
        return f"only for {', '.join(takers)}"

    def _check_bfcl(self) -> None:
        if self.scale is not None and self.scale > MAX_SCALE:
            raise InputError(f"--scale {self.scale:g}: give a number above 0 and up to {MAX_SCALE}")


_OPTIONS = tuple(each.name for each in fields(JobSettings) if each.name not in ("workload", "seed"))


def write_usage(kind: str) -> str:
    """Return the argument that selects the workload."""
    return f"{kind}:PATH" if WORKLOADS[kind].path else kind


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the workload and the options of its jobs, by the names of JobSettings."""
    usage = "; ".join(f"{write_usage(kind)}: {workload.summary}" for kind, workload in WORKLOADS.items())
    parser.add_argument("workload", metavar="WORKLOAD", help=usage)
    jobs = parser.add_argument_group("jobs")
    jobs.add_argument("--jobs", type=int, help="how many (default: 24 of bfcl, all that a file has)")
    jobs.add_argument("--rate", type=float, help="jobs per second" + _defaults("rate"))
    jobs.add_argument("--arrival", choices=get_args(ArrivalKind), help="pattern of arrivals" + _defaults("arrival"))
    jobs.add_argument("--scale", type=float, help="factor on the recorded sizes, in tokens (default 1)")
    jobs.add_argument("--seed", type=int, default=0, help="of jobs, arrivals, tool times and engine (default 0)")
    jobs.add_argument(
        "--tool-latency",
        help="where a recording has none: seconds, lognormal:MEAN,SD, exponential:MEAN or tracelab, Claude Code's, "
        "mostly short and some of minutes (default bfcl: mean 1.9 s, deviation 2.1 s)",
    )
    _add_session_arguments(jobs)
    _add_lane_arguments(jobs)


def _add_session_arguments(jobs: argparse._ArgumentGroup) -> None:
    jobs.add_argument(
        "--max-context", type=int, metavar="N", help="recording: end a session before it exceeds N tokens"
    )
    jobs.add_argument(
        "--max-gap",
        type=float,
        metavar="S",
        dest="max_gap_s",
        help="longest pause within a session" + _defaults("max_gap_s"),
    )


def _add_lane_arguments(jobs: argparse._ArgumentGroup) -> None:
    jobs.add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        metavar="N",
        help="recording: a closed loop of N lanes, each of which begins a session when its last has ended; "
        "several numbers run one after another, into --out/lanes-N",
    )
    jobs.add_argument(
        "--duration", type=float, metavar="S", dest="duration_s", help="seconds to measure such a loop (default 1800)"
    )
    jobs.add_argument(
        "--warm-up", type=int, metavar="N", help="requests of each lane after the first, before that (default 10)"
    )
    jobs.add_argument(
        "--rollout",
        type=int,
        metavar="N",
        help="with --concurrency: N samples of each session in a row, which share its first prompt (default 1)",
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
