"""Checks the options that every run of jobs has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentcache.errors import InputError
from agentcache.output_folder import check_free
from agentcache.policy.registry import find_policy
from agentcache.report.events import EVENTS_FILE, RUN_FILE

# It needs to know the future, which only a simulation does.
CLAIRVOYANT = "belady-cost"


def refuse_clairvoyant(policy: str | None) -> None:
    """Raise InputError for the policy that no server can follow."""
    if policy == CLAIRVOYANT:
        raise InputError(f"--policy {policy}: only for simulate; a server does not know which requests will come")


def refuse_two_caches(policies: Sequence[str], cpu_tokens: int) -> None:
    """Raise InputError for a CPU cache beside the policy that knows the future of one cache."""
    if cpu_tokens > 0 and CLAIRVOYANT in policies:
        raise InputError(
            f"--cpu-tokens {cpu_tokens}: {CLAIRVOYANT} knows one cache; leave it out, or run it alone with --kv-tokens "
            "as large as both"
        )


def check_policies(names: Sequence[str]) -> None:
    """Raise InputError for an unknown policy, or one given twice."""
    for name in names:
        if name != CLAIRVOYANT:
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
