"""The settings of a replay as the command line gives them, with changes."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

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


def make_entry(number: int, arguments: str = '{"keywords": "tea"}') -> str:
    """A line of an official BFCL result file: a search, its result, and the answer."""
    call = [{"role": "assistant", "content": [{"search_engine_query": arguments}]}, {"role": "tool", "content": "[]"}]
    answer = [{"role": "assistant", "content": "{'answer': 'India', 'context': 'none'}"}]
    query = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Who grows tea?"}]
    turn = {"begin_of_turn_query": query, "step_0": call, "step_1": answer}
    return json.dumps({"id": f"web_search_{number}", "result": [[]], "inference_log": [turn]}) + "\n"
