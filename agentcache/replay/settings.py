"""What a replay is to do, as the user gave it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentcache.errors import InputError
from agentcache.policy.registry import find_policy
from agentcache.report.events import EVENTS_FILE, RUN_FILE
from workloads.arrivals import ArrivalKind

WORKLOADS = ("bfcl",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """One field per option of `agentcache replay`, which documents them. `command` is the line that was typed."""

    command: str
    workload: str
    out: Path
    overwrite: bool
    seed: int
    policies: tuple[str, ...]
    model: str | None
    base_url: str | None
    api_key: str
    engine_options: tuple[str, ...]
    kv_tokens: int | None
    results: Path | None
    jobs: int | None
    rate: float
    arrival: ArrivalKind
    cv: float
    scale: float
    tool_latency: str
    request_timeout_s: float

    def check(self) -> None:
        """Raises InputError for what is wrong on its own, before anything is loaded."""
        if self.workload not in WORKLOADS:
            raise InputError(f"workload {self.workload}: unknown; choose from {', '.join(WORKLOADS)}")
        for name in self.policies:
            find_policy(name)
        if self.base_url is None and not (self.model and self.policies):
            raise InputError("replay: give --model and --policy, or --base-url of a server that runs already")
        if len(set(self.policies)) < len(self.policies):
            raise InputError("--policy: the same policy is given twice; give each once")
        if self.base_url is not None and (self.policies or self.engine_options or self.kv_tokens):
            raise InputError("--base-url: the server has its own policy, cache and options; leave ours out")
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: give 0 or more")
        if not self.request_timeout_s > 0:
            raise InputError(f"--request-timeout {self.request_timeout_s:g}: give a number of seconds above 0")
        if self.kv_tokens is not None and self.kv_tokens <= 0:
            raise InputError(f"--kv-tokens {self.kv_tokens}: give the number of tokens that the cache is to hold")
        self._check_out()

    @property
    def jobs_name(self) -> str:
        """The workload as a report names it."""
        return self.workload if self.results is None else f"{self.workload} --results {self.results}"

    def _check_out(self) -> None:
        nearest = next(path for path in (self.out, *self.out.absolute().parents) if path.exists())
        if not nearest.is_dir():
            raise InputError(f"--out {self.out}: {nearest} is a file; give a folder")
        if not self.overwrite and any((self.out / name).exists() for name in (RUN_FILE, EVENTS_FILE)):
            raise InputError(f"--out {self.out}: holds another run; give another folder, or --overwrite to replace it")
