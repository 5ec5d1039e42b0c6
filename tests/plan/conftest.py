"""A recording, and plans without processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from loaded_tokenizers import load_tokenizers_once
from made_command import make_settings
from made_plan import InProcess

from agentcache.sim.command import simulate


@pytest.fixture(autouse=True, scope="module")
def _tokenizers() -> Iterator[None]:
    with load_tokenizers_once():
        yield


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve jobs in a cache that is too small for them."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentcache.report.html.render_svg", lambda _figure, name: f'<svg id="{name}"/>')
        knobs = {"record": {"file": str(folder / "r.jsonl")}, "tuning": {"record_block_tokens": 64}}
        assert simulate(make_settings(folder / "run", policies=("vllm",), knobs=knobs))[0] == 0
    return folder / "r.jsonl"


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentcache.plan.sweep.ProcessPoolExecutor", InProcess)
