"""Where all seeds give the same jobs, several are refused and the report says so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_job import CharacterTokenizer
from made_settings import make_settings
from made_traces import make_trace

from agentcache.errors import InputError
from agentcache.jobs.loader import load_run
from agentcache.jobs.settings import JobSettings
from agentcache.replay.settings import list_seeds

FIXED = [
    ("agent_traces", {}, "; give one, or --arrival poisson"),
    ("agent_traces", {"arrival": "at-once"}, "; give one, or --arrival poisson"),
    ("recording", {}, "; give one"),
]
DRAWN = [
    ("agent_traces:t", {"arrival": "poisson"}),
    ("agent_traces:t", {"concurrency": 4}),
    ("bfcl", {}),
]


def make(folder: Path, workload: str, options: dict[str, Any]) -> Any:
    return replace(make_settings(folder, model="tiny"), jobs=JobSettings(workload=workload, **options))


@pytest.mark.parametrize(("kind", "options", "advice"), FIXED)
def test_seeds_that_decide_nothing_are_refused(tmp_path: Path, kind: str, options: dict[str, Any], advice: str) -> None:
    message = f"--seeds 1 2: all seeds give {kind} the same jobs at the same times{advice}"
    with pytest.raises(InputError, match=re.escape(message) + "$"):
        list_seeds(make(tmp_path, f"{kind}:t", options), [1, 2])


@pytest.mark.parametrize(("workload", "options"), DRAWN)
def test_seeds_that_decide_are_run(tmp_path: Path, workload: str, options: dict[str, Any]) -> None:
    assert len(list_seeds(make(tmp_path, workload, options), [1, 2])) == 2


@pytest.mark.parametrize(("arrival", "says"), [("even", True), ("poisson", False)])
def test_report_says_that_the_seed_decides_nothing(tmp_path: Path, arrival: Any, says: bool) -> None:
    make_trace(tmp_path / "trace_1.json", (1, 2), (1, 2, 3))
    settings = JobSettings(workload=f"agent_traces:{tmp_path}", arrival=arrival)
    notes = load_run(settings, CharacterTokenizer()).notes
    assert any(note.startswith("The seed decides nothing") for note in notes) is says
