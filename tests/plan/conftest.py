"""A recording, and plans without processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from loaded_tokenizers import load_tokenizers_once
from made_command import make_settings
from made_plan import InProcess

from agentcache.plan.settings import Cell, Outcome
from agentcache.plan.worker import Worker
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


@pytest.fixture
def without_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell has one job, of ten seconds."""

    def run(_: Worker, cell: Cell) -> Outcome:
        return Outcome(cell, 1, 10.0, 10.0, 1.0, 0.5, 0.6, 0.7, latencies_s={"job": 10.0}, working_set=5_000)

    monkeypatch.setattr(Worker, "run", run)


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentcache.plan.sweep.ProcessPoolExecutor", InProcess)
