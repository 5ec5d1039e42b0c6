"""The settings of a replay as the command line gives them, with changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentcache.replay.settings import ReplaySettings

_DEFAULTS: dict[str, Any] = {
    "command": "agentcache replay bfcl ...",
    "workload": "bfcl",
    "overwrite": False,
    "seed": 0,
    "policies": (),
    "model": None,
    "base_url": None,
    "api_key": "none",
    "engine_options": (),
    "kv_tokens": None,
    "results": None,
    "jobs": 3,
    "rate": 50.0,
    "arrival": "poisson",
    "cv": 1.0,
    "scale": 0.02,
    "tool_latency": "0.01",
    "request_timeout_s": 30.0,
}


def make_settings(out: Path, **changes: Any) -> ReplaySettings:
    return ReplaySettings(out=out, **{**_DEFAULTS, **changes})


def make_entry(number: int, arguments: str = '{"keywords": "tea"}') -> str:
    """A line of an official BFCL result file: a search, its result, and the answer."""
    call = [{"role": "assistant", "content": [{"search_engine_query": arguments}]}, {"role": "tool", "content": "[]"}]
    answer = [{"role": "assistant", "content": "{'answer': 'India', 'context': 'none'}"}]
    query = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Who grows tea?"}]
    turn = {"begin_of_turn_query": query, "step_0": call, "step_1": answer}
    return json.dumps({"id": f"web_search_{number}", "result": [[]], "inference_log": [turn]}) + "\n"
