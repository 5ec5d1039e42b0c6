"""Holds and checks the options of `agentcache plan`, and describes its points: a policy, caches, engines, outcome."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.errors import InputError
from agentcache.models.catalog import check_model
from agentcache.output_folder import check_free
from agentcache.policy.presets import PRESETS, check_preset
from agentcache.run.checks import check_kv_tokens, check_policies
from agentcache.sim.costs import find_costs, find_room
from agentcache.sim.settings import DEFAULT_BLOCK_SIZE, check_routing


@dataclass(frozen=True, slots=True)
class Cell:
    """`kv_tokens` and `cpu_tokens` are those of one engine, of which `engines` share the traffic."""

    policy: str
    kv_tokens: int
    cpu_tokens: int = 0
    engines: int = 1

    @property
    def all_tokens(self) -> int:
        """The tokens of all of its caches together."""
        return (self.kv_tokens + self.cpu_tokens) * self.engines


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation of a cell gave; rates are shares of all prompt tokens. None: no job came to its end.

    Job latency goes from the first request to the last reply, without the pauses of people. Beside the hits stand two
    bounds of them: `clairvoyant_hits` in one cache as large as all of the cell's, `endless_hits` in one without end.
    `latencies_s` are by job, in the order in which they came; `working_set` is what jobs at once want, in tokens.
    """

    cell: Cell
    jobs: int
    mean_s: float | None
    p90_s: float | None
    ttft_p99_s: float | None
    hit_rate: float
    clairvoyant_hits: float
    endless_hits: float
    problem: str | None = None
    latencies_s: Mapping[str, float] = field(default_factory=dict)
    working_set: int = 0


def describe_cell(cell: Cell) -> str:
    """Name a cell in a line."""
    host = f" + {cell.cpu_tokens:,} in the CPU cache" if cell.cpu_tokens else ""
    engines = f", {cell.engines} engines" if cell.engines > 1 else ""
    return f"{cell.policy}, {cell.kv_tokens:,} tokens{host}{engines}"


def describe_caches(cell: Cell) -> str:
    """Say how large the caches are, and how many engines have such: what rivals have alike."""
    host = f", and {cell.cpu_tokens:,} in the CPU cache" if cell.cpu_tokens else ""
    engines = f", in each of {cell.engines} engines" if cell.engines > 1 else ""
    return f"{cell.kv_tokens:,} tokens{host}{engines}"


PLAN_FILE = "plan.html"
# Where each plan has a folder of its own, unless --out names one.
NEW_FOLDERS = Path("runs")
DEFAULT_POLICIES = ("vllm", "agentcache")
DEFAULT_REQUESTS = 5_000
# Engines that one process simulates side by side: each has all the blocks of its cache as objects.
MOST_REPLICAS = 64
# Of what one engine has room for.
_DEFAULT_SHARES = (1.0, 0.5, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """One field per option of `agentcache plan`, which documents them. `command` is the line that was typed.

    Empty `kv_tokens` and `cpu_tokens` stand for the defaults, `out` None for a new folder, `target_s` None for no
    question of how many GPUs, and `routing` None for that of the engine: jobs stay at their engines under policies that
    follow jobs.
    """

    command: str
    recording: Path
    out: Path | None
    model: str
    gpu: str
    policies: tuple[str, ...] = ()
    kv_tokens: tuple[int, ...] = ()
    cpu_tokens: tuple[int, ...] = ()
    replicas: tuple[int, ...] = (1,)
    routing: str | None = None
    tensor_parallel_size: int = 1
    profile: Path | None = None
    block_size: int = DEFAULT_BLOCK_SIZE
    requests: int = DEFAULT_REQUESTS
    target_s: float | None = None
    max_gpus: int = 16
    workers: int | None = None
    speedup: float = 1.0
    knobs: Mapping[str, Any] = field(default_factory=dict)
    overwrite: bool = False
    as_json: bool = False

    def check(self) -> None:
        """Raise InputError for what is wrong on its own, before anything is loaded."""
        check_policies(self.policies)
        self._check_axes()
        for flag, value in (
            ("--requests", self.requests),
            ("--block-size", self.block_size),
            ("--max-gpus", self.max_gpus),
            ("--workers", self.count_workers()),
        ):
            if value < 1:
                raise InputError(f"{flag} {value}: give at least 1")
        if not (math.isfinite(self.speedup) and self.speedup > 0):
            raise InputError(f"--speedup {self.speedup:g}: give a number above 0; 2 is twice the traffic")
        # As for a run: it took minutes.
        check_free(self.out or NEW_FOLDERS, [PLAN_FILE] if self.out else [], "plan", overwrite=self.overwrite)
        self._check_target()
        read_config({CONFIG_KEY: self.knobs})
        if self.profile is None:
            check_preset(self.model, self.gpu)
        if self.profile is not None or self.model in PRESETS:
            self.check_model()

    def check_model(self) -> None:
        """Raise InputError for a model that cannot be simulated; to read a published one's config takes seconds."""
        if self.profile is None and self.model not in PRESETS:
            check_model(self.model)
        find_costs(self.model, self.gpu, self.tensor_parallel_size, self.profile)
        self.list_cells()

    def make_folder(self) -> Path:
        """Make the folder of the page: --out, else the first of the numbered ones that is not there."""
        numbered = (NEW_FOLDERS / f"plan-{number}" for number in itertools.count(1))
        folder = self.out or next(each for each in numbered if not each.exists())
        folder.mkdir(parents=True, exist_ok=self.out is not None)
        return folder

    def _check_axes(self) -> None:
        for tokens in self.kv_tokens:
            check_kv_tokens(tokens)
            if tokens < self.block_size:
                raise InputError(f"--kv-tokens {tokens}: give at least one block of {self.block_size} tokens")
        for tokens in self.cpu_tokens:
            if tokens < 0 or 0 < tokens < 2 * self.block_size:
                raise InputError(
                    f"--cpu-tokens {tokens}: give 0, or at least two blocks of {self.block_size} tokens each"
                )
        for count in self.replicas:
            if not 1 <= count <= MOST_REPLICAS:
                raise InputError(f"--replicas {count}: give 1 to {MOST_REPLICAS} engines")
        if self.routing is not None:
            check_routing(self.routing)

    def _check_target(self) -> None:
        if self.target_s is None:
            return
        if not (math.isfinite(self.target_s) and self.target_s > 0):
            raise InputError(f"--target {self.target_s:g}: give a mean job latency in seconds, above 0")
        if (most := self.max_gpus // self.tensor_parallel_size) < 1:
            raise InputError(
                f"--max-gpus {self.max_gpus}: an engine has {self.tensor_parallel_size}; give at least as many, or "
                "lower --tensor-parallel-size"
            )
        if most > MOST_REPLICAS:
            raise InputError(
                f"--max-gpus {self.max_gpus}: that is {most} engines, and at most {MOST_REPLICAS} are simulated; give "
                f"at most {MOST_REPLICAS * self.tensor_parallel_size}"
            )

    def count_workers(self) -> int:
        """Return how many simulations run at once: one a core by default."""
        return len(os.sched_getaffinity(0)) if self.workers is None else self.workers

    @property
    def room(self) -> int:
        """The tokens that one engine's cache has room for. Raises InputError where that is not known."""
        return find_room(self.model, self.gpu, self.tensor_parallel_size, self.profile)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.kv_tokens or tuple(int(self.room * share) for share in _DEFAULT_SHARES)

    def leave_out_small(self, longest: int) -> PlanSettings:
        """Leave out default sizes that a request of `longest` tokens does not fit.

        What the GPU has room for stays: it could not serve a longer one.
        """
        if self.kv_tokens:
            return self
        least = min(longest, self._in_blocks(self.room))
        return replace(self, kv_tokens=tuple(size for size in self._sizes if self._in_blocks(size) >= least))

    def _in_blocks(self, tokens: int) -> int:
        return tokens // self.block_size * self.block_size

    def list_cells(self) -> list[Cell]:
        """List what to simulate, with what matters most first: an interrupted plan has that."""
        sizes = self._sizes
        caches = [(tokens, host) for host in self.cpu_tokens or (0,) for tokens in sizes]
        if not self.cpu_tokens:
            # As large a CPU cache as the cache is: what a host usually has to spare.
            caches.append((sizes[0], sizes[0]))
        policies = self.policies or DEFAULT_POLICIES
        return [
            Cell(policy, self._in_blocks(tokens), host, count)
            for count in self.replicas
            for tokens, host in caches
            for policy in policies
        ]
