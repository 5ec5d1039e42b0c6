"""Plans as the command line asks for them, with changes, and what their pages are made of."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from agentcache.plan.command import plan
from agentcache.plan.page import Plan, write_page
from agentcache.plan.settings import Cell, Outcome, PlanSettings
from agentcache.plan.worker import Worker
from workloads.recording.reader import read_recording


def plan_settings(recording: Path, out: Path | None, **changes: Any) -> PlanSettings:
    defaults: dict[str, Any] = {
        "command": "agentcache plan ...",
        "model": "llama-3.1-8b",
        "gpu": "h200",
        "policies": ("vllm", "agentcache"),
        "kv_tokens": (7_000, 14_000),
        "cpu_tokens": (0,),
        "workers": 1,
    }
    return PlanSettings(recording=recording, out=out, **{**defaults, **changes})


class InProcess:
    """An executor of this process: to start others takes longer than to simulate."""

    def __init__(self, _workers: int, _context: object, _initializer: object, initargs: tuple[Any, ...]) -> None:
        self._worker = Worker(*initargs)

    def submit(self, _: object, cell: Cell) -> Any:
        future: Future[Outcome] = Future()
        future.set_result(self._worker.run(cell))
        return future

    def shutdown(self, **_: object) -> None:
        """There is nothing to end."""


def run_plan(settings: PlanSettings) -> int:
    """Plan as the command does, once it has read the recording."""
    return plan(settings, read_recording(settings.recording))


def make_plan(settings: PlanSettings) -> Plan:
    """What the page is made of, beside the page."""
    made: list[Plan] = []

    def keep(each: Plan, path: Path) -> None:
        made.append(each)
        write_page(each, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentcache.plan.command.write_page", keep)
        patch.setattr("agentcache.plan.plots.render_svg", lambda _figure, name: f'<svg id="{name}"/>')
        assert run_plan(settings) == 0
    return made[0]
