"""Describes which jobs to run: the options that replays and simulations share, and those of each workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from agentcache.closest_name import suggest
from agentcache.errors import InputError
from workloads.arrivals import ArrivalKind
from workloads.bfcl.result_file import count_entries
from workloads.bfcl.web_search import MAX_SCALE
from workloads.tool_latency import parse_tool_latency

Option = str | int | float | Path | None

_LEAST = {
    "jobs": 1,
    "max_context": 1,
    "max_gap_s": 0,
    "concurrency": 1,
    "warm_up": 0,
}
_ABOVE_ZERO = {
    "duration_s": "the seconds to measure",
    "rate": "jobs per second",
    "cv": "the coefficient of variation of the gaps",
    "scale": "the factor on the recorded sizes",
    "dispersion": "the rate of sessions over the rate of turns in a session",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """`options` maps the options that it takes, by their names in JobSettings, to their defaults.

    `path` says what follows the colon, empty if nothing does. `size_flag` names the option that makes jobs smaller,
    empty where sizes are always as recorded.
    """

    summary: str
    options: Mapping[str, Option]
    size_flag: str = "--scale"
    path: str = ""


WORKLOADS: dict[str, Workload] = {
    "bfcl": Workload(
        "BFCL v4 web search",
        {
            "jobs": None,
            "results": None,
            "rate": 0.5,
            "arrival": "poisson",
            "cv": 1.0,
            "scale": 1.0,
            "tool_latency": "bfcl",
        },
    ),
    "agent_traces": Workload(
        "recorded coding-agent sessions",
        {
            "jobs": None,
            "rate": 0.2,
            "arrival": "even",
            "cv": 1.0,
            "scale": 1.0,
            "max_context": None,
            "max_gap_s": 60.0,
        },
        size_flag="--max-context",
        path="a folder of trace files, or one of them",
    ),
    "bfcl_multi_turn": Workload(
        "BFCL v4 multi-turn, of recorded shapes",
        {"jobs": None, "rate": 0.5, "arrival": "poisson", "cv": 0.25, "dispersion": 5.0, "tool_latency": "bfcl"},
        size_flag="",
        path="a file of recorded shapes",
    ),
    "recording": Workload(
        "your own traffic, as serve --record wrote it, or spans of OpenTelemetry",
        {"jobs": None, "max_context": None, "max_gap_s": None},
        size_flag="--max-context",
        path="a recording",
    ),
}

# Traces of others, which come in as recordings.
CONVERTED = ("conversation", "mooncake", "tau_bench", "webdancer", "lmcache")

# A closed loop has no arrivals. Its defaults are AgentX's, which docs/closed-loop.md compares.
_CLOSED_LOOPS: dict[str, Workload] = {
    "agent_traces": replace(
        WORKLOADS["agent_traces"],
        options={
            "jobs": None,
            "concurrency": None,
            "duration_s": 1800.0,
            "warm_up": 10,
            "scale": 1.0,
            "max_context": None,
            "max_gap_s": 300.0,
        },
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """One field per option, which the command line documents. None takes the workload's own value.

    `workload` is its name, and a colon and a path where it needs one. `rate` is jobs per second. With `concurrency`,
    the jobs are a closed loop of so many lanes.
    """

    workload: str
    seed: int = 0
    jobs: int | None = None
    results: Path | None = None
    rate: float | None = None
    arrival: ArrivalKind | None = None
    cv: float | None = None
    scale: float | None = None
    tool_latency: str | None = None
    max_context: int | None = None
    max_gap_s: float | None = None
    dispersion: float | None = None
    concurrency: int | None = None
    duration_s: float | None = None
    warm_up: int | None = None

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
        if self.kind == "agent_traces" and self.concurrency is None:
            return self.options()["arrival"] in ("poisson", "gamma")
        return self.kind != "recording"

    @property
    def title(self) -> str:
        """The workload's name in reports."""
        return self.workload if self.results is None else f"{self.workload} --results {self.results}"

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
        if name in WORKLOADS[self.kind].options:
            return "not with --concurrency, where a session begins when another has ended; leave it out"
        if self.kind in _CLOSED_LOOPS and name in _CLOSED_LOOPS[self.kind].options:
            return "only with --concurrency"
        both = (*WORKLOADS.items(), *_CLOSED_LOOPS.items())
        takers = dict.fromkeys(kind for kind, workload in both if name in workload.options)
        return f"only for {', '.join(takers)}"

    def _check_bfcl(self) -> None:
        if self.results is not None:
            count_entries(self.results)
        elif self.scale is not None and self.scale > MAX_SCALE:
            raise InputError(f"--scale {self.scale:g}: give a number above 0 and up to {MAX_SCALE}")


_OPTIONS = tuple(each.name for each in fields(JobSettings) if each.name not in ("workload", "seed"))


def write_usage(kind: str) -> str:
    """Return the argument that selects the workload."""
    return f"{kind}:PATH" if WORKLOADS[kind].path else kind
