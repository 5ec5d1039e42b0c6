"""Which jobs are run: the options that a replay and a simulation share, and what each workload makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from agentcache.errors import InputError
from workloads.arrivals import ArrivalKind

Option = str | int | float | Path | None

_LEAST = {"jobs": 1, "max_context": 1, "max_gap_s": 0, "turns": 1}
_ABOVE_ZERO = {
    "rate": "jobs per second",
    "cv": "the coefficient of variation of the gaps",
    "scale": "the factor on the recorded sizes",
    "dispersion": "the rate of sessions over the rate of turns in a session",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """`options` are those that it takes, by their names in JobSettings, with the values that they have if not given.

    `path` says what stands behind the colon, empty if nothing does. `size_flag` makes its jobs smaller.
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
    "conversation": Workload(
        "questions about long documents",
        {"jobs": None, "rate": 0.2, "cv": 0.25, "scale": 1.0, "dispersion": 5.0, "turns": 8},
        path="a file of documents",
    ),
    "mooncake": Workload(
        "a trace of single requests",
        {"jobs": None, "rate": None, "scale": 1.0, "max_context": None},
        size_flag="--max-context",
        path="a Mooncake trace file",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """One field per option, which the command line documents. None takes the workload's own value.

    `workload` is its name, and a colon and a path where it needs one. `rate` is jobs per second.
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
    turns: int | None = None

    def check(self) -> None:
        """Raises InputError, which names the flag, for what is wrong on its own. The path must exist."""
        if self.kind not in WORKLOADS:
            raise InputError(f"workload {self.kind}: unknown; choose from {', '.join(map(write_usage, WORKLOADS))}")
        self._check_path()
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: give 0 or more")
        for name in _OPTIONS:
            if getattr(self, name) is not None:
                self._check_option(name, getattr(self, name))

    @property
    def kind(self) -> str:
        return self.workload.partition(":")[0]

    @property
    def path(self) -> Path:
        """Of a workload that has one."""
        return Path(self.workload.partition(":")[2])

    @property
    def taken(self) -> Workload:
        """What is known of the workload."""
        return WORKLOADS[self.kind]

    def options(self) -> dict[str, Option]:
        """What the workload takes, as given or as it has it by itself."""
        return {
            name: default if getattr(self, name) is None else getattr(self, name)
            for name, default in self.taken.options.items()
        }

    @property
    def title(self) -> str:
        """The workload as a report names it."""
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
            takers = [kind for kind, workload in WORKLOADS.items() if name in workload.options]
            raise InputError(f"{flag}: only for {', '.join(takers)}")
        if name in _LEAST and not (math.isfinite(value) and value >= _LEAST[name]):
            raise InputError(f"{flag} {value:g}: give at least {_LEAST[name]}")
        if name in _ABOVE_ZERO and not (math.isfinite(value) and value > 0):
            raise InputError(f"{flag} {value:g}: give a number above 0, {_ABOVE_ZERO[name]}")


_OPTIONS = tuple(each.name for each in fields(JobSettings) if each.name not in ("workload", "seed"))


def write_usage(kind: str) -> str:
    """The argument that asks for the workload."""
    return f"{kind}:PATH" if WORKLOADS[kind].path else kind
