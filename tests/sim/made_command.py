"""The settings of a simulation as the command line gives them, with changes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from made_recordings import make_session, write_sessions

from agentcache.jobs.settings import JobSettings
from agentcache.sim.settings import SimulationSettings

_JOBS: dict[str, Any] = {"workload": "bfcl", "jobs": 12, "rate": 50.0, "scale": 0.1, "tool_latency": "0.5"}
_DEFAULTS: dict[str, Any] = {
    "command": "agentcache simulate bfcl ...",
    "overwrite": False,
    "policies": ("lru",),
    "model": "llama-3.1-8b",
    "gpu": "h200",
    "kv_tokens": 7_000,
}


def make_settings(out: Path, **changes: Any) -> SimulationSettings:
    """`jobs` among the changes is their number. What only bfcl takes is left out for another workload."""
    given = {each.name: changes.pop(each.name) for each in fields(JobSettings) if each.name in changes}
    defaults = _JOBS if given.get("workload", "bfcl") == "bfcl" else {}
    return SimulationSettings(out=out, jobs=JobSettings(**{**defaults, **given}), **{**_DEFAULTS, **changes})


def make_sessions(path: Path) -> str:
    """Six of them, of which a cache of 2,000 tokens holds a few; each comes back to its blocks again and again."""
    prompts = [tuple(range(length)) for length in range(2, 10)]
    return f"recording:{write_sessions(path, (make_session(number, *prompts, wait_s=2.0) for number in range(6)))}"
