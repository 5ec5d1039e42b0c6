"""The settings of a simulation as the command line gives them, with changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentcache.sim.settings import SimulationSettings

_DEFAULTS: dict[str, Any] = {
    "command": "agentcache simulate bfcl ...",
    "workload": "bfcl",
    "overwrite": False,
    "seed": 0,
    "policies": ("lru",),
    "model": "llama-3.1-8b",
    "gpu": "h200",
    "kv_tokens": 7_000,
    "results": None,
    "jobs": 20,
    "rate": 50.0,
    "arrival": "poisson",
    "cv": 1.0,
    "scale": 0.1,
    "tool_latency": "0.5",
}


def make_settings(out: Path, **changes: Any) -> SimulationSettings:
    return SimulationSettings(out=out, **{**_DEFAULTS, **changes})
