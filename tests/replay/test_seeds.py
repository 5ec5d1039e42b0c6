"""Where all seeds give the same jobs, several are refused and the report says so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_job import CharacterTokenizer
from made_recordings import make_requests
from made_settings import make_settings

from agentcache.errors import InputError
from agentcache.jobs.loader import load_run
from agentcache.jobs.settings import JobSettings
from agentcache.replay.settings import list_seeds

DRAWN = [
    ("recording:t", {"concurrency": 4}),
    ("bfcl", {}),
]


def make(folder: Path, workload: str, options: dict[str, Any]) -> Any:
    return replace(make_settings(folder, model="tiny"), jobs=JobSettings(workload=workload, **options))


def test_seeds_that_decide_nothing_are_refused(tmp_path: Path) -> None:
    message = "--seeds 1 2: all seeds give recording the same jobs at the same times; give one"
    with pytest.raises(InputError, match=re.escape(message) + "$"):
        list_seeds(make(tmp_path, "recording:t", {}), [1, 2])


@pytest.mark.parametrize(("workload", "options"), DRAWN)
def test_seeds_that_decide_are_run(tmp_path: Path, workload: str, options: dict[str, Any]) -> None:
    assert len(list_seeds(make(tmp_path, workload, options), [1, 2])) == 2


@pytest.mark.parametrize(("lanes", "says"), [(None, True), (2, False)])
def test_report_says_that_the_seed_decides_nothing(tmp_path: Path, lanes: int | None, says: bool) -> None:
    path = make_requests(tmp_path / "r.jsonl", (1, 2), (1, 2, 3))
    settings = JobSettings(workload=f"recording:{path}", concurrency=lanes)
    notes = load_run(settings, CharacterTokenizer()).notes
    assert any(note.startswith("The seed decides nothing") for note in notes) is says
