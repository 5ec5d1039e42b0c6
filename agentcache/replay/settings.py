"""What a replay is to do, as the user gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentcache.errors import InputError
from agentcache.policy.registry import find_policy
from agentcache.replay.job_settings import JobSettings
from agentcache.report.events import EVENTS_FILE, RUN_FILE

# It needs to know what comes, which only a simulation does.
CLAIRVOYANT = "belady-cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """One field per option of `agentcache replay`, which documents them. `command` is the line that was typed.

    `knobs` are further fields of AgentCacheConfig.
    """

    command: str
    jobs: JobSettings
    out: Path
    overwrite: bool
    policies: tuple[str, ...]
    model: str | None
    base_url: str | None
    api_key: str
    engine_options: tuple[str, ...]
    kv_tokens: int | None
    request_timeout_s: float
    knobs: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raises InputError for what is wrong on its own, before anything is loaded."""
        self.jobs.check()
        for name in self.policies:
            refuse_clairvoyant(name)
        check_policies(self.policies)
        if self.base_url is None and not (self.model and self.policies):
            raise InputError("replay: give --model and --policy, or --base-url of a server that runs already")
        if self.base_url is not None and (self.policies or self.engine_options or self.kv_tokens or self.knobs):
            raise InputError("--base-url: the server has its own policy, cache and options; leave ours out")
        if not self.request_timeout_s > 0:
            raise InputError(f"--request-timeout {self.request_timeout_s:g}: give a number of seconds above 0")
        if self.kv_tokens is not None:
            check_kv_tokens(self.kv_tokens)
        check_out(self.out, self.overwrite)


def refuse_clairvoyant(policy: str | None) -> None:
    """Raises InputError for the policy that no server can follow."""
    if policy == CLAIRVOYANT:
        raise InputError(f"--policy {policy}: only for simulate; a server does not know which requests will come")


def check_policies(names: Sequence[str]) -> None:
    """Raises InputError for a name that no policy has, or that is there twice."""
    for name in names:
        if name != CLAIRVOYANT:
            find_policy(name)
    if len(set(names)) < len(names):
        raise InputError("--policy: the same policy is given twice; give each once")


def check_kv_tokens(tokens: int) -> None:
    """Raises InputError for a cache that holds nothing."""
    if tokens <= 0:
        raise InputError(f"--kv-tokens {tokens}: give the number of tokens that the cache is to hold")


def check_out(out: Path, overwrite: bool) -> None:
    """Raises InputError when the folder of a run cannot be made, or holds another run that is to be kept."""
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"--out {out}: {nearest} is a file; give a folder")
    if not overwrite and any((out / name).exists() for name in (RUN_FILE, EVENTS_FILE)):
        raise InputError(f"--out {out}: holds another run; give another folder, or --overwrite to replace it")
