"""The settings of a replay as the command line gives them, with changes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from recorded_lines import make_line, write_recording

from agentcache.jobs.settings import JobSettings
from agentcache.replay.settings import ReplaySettings

_JOBS: dict[str, Any] = {"workload": "bfcl", "jobs": 3, "rate": 50.0, "scale": 0.02, "tool_latency": "0.01"}
_DEFAULTS: dict[str, Any] = {
    "command": "agentcache replay bfcl ...",
    "overwrite": False,
    "policies": (),
    "model": None,
    "base_url": None,
    "api_key": "none",
    "engine_options": (),
    "kv_tokens": None,
    "request_timeout_s": 30.0,
}


def make_settings(out: Path, **changes: Any) -> ReplaySettings:
    """`jobs` among the changes is their number. What only bfcl takes is left out for another workload."""
    given = {each.name: changes.pop(each.name) for each in fields(JobSettings) if each.name in changes}
    defaults = _JOBS if given.get("workload", "bfcl") == "bfcl" else {}
    return ReplaySettings(out=out, jobs=JobSettings(**{**defaults, **given}), **{**_DEFAULTS, **changes})


def make_sessions(path: Path, *numbers: int) -> str:
    """The workload of a recording with these sessions, each of which calls a tool and then answers."""
    lines = []
    for place, number in enumerate(numbers):
        ids = [100 * number + block for block in range(6)]
        session = {"session": f"search_{number}"}
        lines.append(make_line(10 * place, 25, 5, ids[:3], called=["look"], end="calls", **session))
        lines.append(make_line(10 * place + 150, 45, 15, ids, **session))
    return f"recording:{write_recording(path, *sorted(lines, key=lambda line: line['timestamp']))}"
