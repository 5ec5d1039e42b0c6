"""Checks the options that every run of jobs has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.errors import InputError
from agentcache.jobs.settings import JobSettings
from agentcache.output_folder import check_free
from agentcache.policy.registry import find_policy
from agentcache.report.events import EVENTS_FILE, RUN_FILE


def check_policies(names: Sequence[str]) -> None:
    """Raise InputError for an unknown policy, or one given twice."""
    for name in names:
        find_policy(name)
    if len(set(names)) < len(names):
        raise InputError("--policy: the same policy is given twice; give each once")


def check_kv_tokens(tokens: int) -> None:
    """Raise InputError for a cache that holds nothing."""
    if tokens <= 0:
        raise InputError(f"--kv-tokens {tokens}: give the number of tokens that the cache is to hold")


def check_out(out: Path, overwrite: bool) -> None:
    """Raise InputError if the run's folder cannot be made, or holds another run that is to be kept."""
    check_free(out, (RUN_FILE, EVENTS_FILE), "run", overwrite=overwrite)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What the settings of a replay and of a simulation have in common: a field per option, which documents it.

    `command` is the line that was typed. `knobs` are further fields of AgentCacheConfig.
    """

    command: str
    jobs: JobSettings
    out: Path
    overwrite: bool
    policies: tuple[str, ...]
    knobs: Mapping[str, Any] = field(default_factory=dict)

    def check_run(self) -> None:
        """Raise InputError for one of these that cannot work, before anything is loaded."""
        self.jobs.check()
        check_policies(self.policies)
        check_out(self.out, self.overwrite)
        read_config({CONFIG_KEY: self.knobs})


_Settings = TypeVar("_Settings", bound=RunSettings)


def list_lanes(settings: _Settings, lanes: Sequence[int] | None) -> list[_Settings]:
    """Return the same run with each number of lanes, in folders of their own; one number keeps --out itself.

    Raises InputError for a number that is named twice, and where --out holds a run that the common report would hide.
    """
    if lanes is None or len(lanes) < 2:
        return [settings]
    if len(set(lanes)) < len(lanes):
        raise InputError(f"--concurrency {' '.join(map(str, lanes))}: name each once")
    if (settings.out / RUN_FILE).exists():
        raise InputError(f"--out {settings.out}: holds a run itself; give another folder for several numbers of lanes")
    return [
        replace(settings, jobs=replace(settings.jobs, concurrency=each), out=settings.out / f"lanes-{each}")
        for each in lanes
    ]
