"""What only explains breaks half-way: every step of the engine is as if it had not, and it says what is off."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lone_scheduler import Step
from tiered_jobs import PROMPT, ask, make_tokens, push_out
from tiered_scheduler import TieredScheduler, make_tiered
from vllm.v1.engine.core import EngineCoreProc

from agentcache.engine.constants import EXPIRED_METHOD, JOB_METHOD, JOBS_METHOD, RELEASE_METHOD
from agentcache.engine.cpu_cache.tier import Tier
from agentcache.engine.jobs import tracker as tracker_module
from agentcache.engine.observe.lru_comparison import LruComparison
from agentcache.engine.observe.misses import Ledger, MissLog
from agentcache.engine.observe.prompt_change import PromptChanges
from agentcache.engine.observe.recorder import RequestRecorder
from agentcache.engine.observe.stats import JobStats
from agentcache.engine.parts import RAISE
from agentcache.engine.rpc import core_calls
from agentcache.engine.rpc import snapshot as snapshot_module
from agentcache.engine.rpc.snapshot import Snapshot, make_snapshot
from agentcache.engine.views import SegmentCounts
from workloads.recording.line_maker import LineMaker

# Of each observer the calls that the engine makes.
CALLS: dict[str, list[tuple[Any, str]]] = {
    "misses": [(MissLog, name) for name in ("admitted", "evicted", "reset")],
    "prompt_changes": [(PromptChanges, name) for name in ("explain", "note", "forget", "clear")],
    "hit_places": [(tracker_module, "find_places")],
    "job_stats": [
        *((JobStats, name) for name in ("add_turn", "begin", "add_gap", "end", "take_expired", "session_of", "close")),
        (snapshot_module, "count_runtime"),
        (core_calls, "view_ended"),
    ],
    "losses": [(Ledger, name) for name in ("note_use", "note_not_copied")],
    "lru_comparison": [(LruComparison, name) for name in ("admitted", "ended", "reset")],
    "recording": [
        *((RequestRecorder, name) for name in ("admitted", "arrived", "stepped", "ended", "close")),
        (LineMaker, "make"),
    ],
    "snapshot": [(Tier, "count"), (SegmentCounts, "model_copy"), (snapshot_module, "_read_lambda")],
}
ROUNDS = [dict(zip(CALLS, calls, strict=True)) for calls in zip_longest(*CALLS.values())]


class BrokenError(Exception):
    pass


def break_call(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """From the second call on, if there is one: half of what it is to know is there."""
    original, calls = getattr(owner, name), []

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        if len(calls) > 1 or name in {"clear", "close", "session_of"}:
            raise BrokenError(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


def serve(model_path: str, file: Path) -> tuple[TieredScheduler, list[Step], Snapshot]:
    """Jobs lose their blocks, come back with changed prompts, are over, and all is asked for that can be."""
    lone = make_tiered(model_path, runtime={"show_text": True}, record={"file": str(file)})
    steps: list[Step] = []
    step = lone.step
    lone.step = lambda: steps.append(step()) or steps[-1]  # type: ignore[func-returns-value,method-assign]
    core = SimpleNamespace(scheduler=lone.scheduler, engine_index=0)
    for turn in range(2):
        for job in ("mine", "yours"):
            ask(lone, f"{job}/{2 * turn}", PROMPT)
            lone.run_until_idle()
            push_out(lone, *range(10 * turn, 10 * turn + 3))
            ask(lone, f"{job}/{2 * turn + 1}", [*PROMPT[:110], *make_tokens(9 + turn, 50)])
            lone.run_until_idle()
        make_snapshot(lone.scheduler)
        getattr(EngineCoreProc, JOBS_METHOD)(core, 0, 500, 32)
        # The last is taken for the id of a reply.
        for method, name in ((JOB_METHOD, "mine"), (RELEASE_METHOD, "mine"), (RELEASE_METHOD, "other")):
            getattr(EngineCoreProc, method)(core, name, None)
        assert lone.scheduler.reset_prefix_cache(reset_connector=True)
        lone.scheduler.clock.now_s += 4000
        lone.scheduler.tracker.step()
        getattr(EngineCoreProc, EXPIRED_METHOD)(core)
    assert len(lone.scheduler.tracker.runtime.jobs) == 0
    lone.scheduler.check_integrity()
    make_snapshot(lone.scheduler)
    lone.scheduler.shutdown()
    return lone, steps, make_snapshot(lone.scheduler)


@pytest.fixture(scope="module")
def undisturbed(tiny_model_path: str, tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    _, steps, snapshot = serve(tiny_model_path, tmp_path_factory.mktemp("record") / "file")
    assert snapshot.observer_failures == dict.fromkeys(CALLS, 0)
    return steps


@pytest.mark.parametrize("broken", ROUNDS, ids=lambda broken: " ".join(call[1] for call in broken.values() if call))
def test_serving_goes_on_without_what_explains_it(
    tiny_model_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: list[Step],
    broken: dict[str, tuple[Any, str] | None],
) -> None:
    monkeypatch.delenv(RAISE)
    for call in broken.values():
        if call is not None:
            break_call(monkeypatch, *call)
    lone, steps, snapshot = serve(tiny_model_path, tmp_path / "file")
    assert snapshot.observer_failures == {name: int(call is not None) for name, call in broken.items()}
    assert steps == undisturbed
    assert (lone.scheduler.comparison is None) == (broken["lru_comparison"] is not None)
