"""Jobs of many turns on a cache that is far too small for them: every reply is that of a cold engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from crowd import BLOCKS, TOOLS, Crowd, assert_equal_to_cold, assert_eventful, note_preemptions
from live_engine import BLOCK, LiveEngine
from sizes import IS_THOROUGH

from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.rpc.job_views import count_runtime, view_jobs

pytestmark = pytest.mark.engine

ENGINES: dict[str, dict[str, Any]] = {
    "small steps": {"max_num_batched_tokens": 3 * BLOCK},
    "by priority": {"scheduling_policy": "priority", "max_num_batched_tokens": 6 * BLOCK},
    # Between two turns of a job lie some hundred looks at the clock.
    "agentcache": {"policy": "agentcache", "look_s": 0.01},
    "agentcache, small steps": {"policy": "agentcache", "look_s": 0.2, "max_num_batched_tokens": 3 * BLOCK},
}
if IS_THOROUGH:
    ENGINES |= {
        "one seat, one gap": {"max_num_seqs": 1, "tuning": {"row_s": 0.0, "max_gaps": 1}},
        "pensieve": {"policy": "pensieve"},
        "continuum+asymcache": {"policy": "continuum+asymcache", "look_s": 0.05},
    }


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_replies_of_jobs_equal_cold_ones(
    take_engine: Callable[..., LiveEngine], cold: LiveEngine, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = take_engine(num_gpu_blocks_override=BLOCKS, **options)
    crowd = Crowd(engine, random.Random(4))
    note_preemptions(engine, crowd.preempted, monkeypatch)
    crowd.run(jobs=6, turns=4)
    assert_equal_to_cold(crowd, cold)
    assert_eventful(crowd)
    if engine.scheduler.tracker is not None and engine.scheduler.tracker.pins is not None:
        assert_jobs_were_followed(engine.scheduler.tracker)
    assert not engine.scheduler.gap_filler.rows
    assert engine.pool.get_num_free_blocks() == BLOCKS - 1


def assert_jobs_were_followed(tracker: JobTracker) -> None:
    """Pins were kept, used and lost: replies must be the same either way."""
    counts = count_runtime(tracker)
    assert (counts.jobs, set(counts.tools)) == (6, set(TOOLS))
    assert {view.turn_count for view in view_jobs(tracker)} == {4}
    assert counts.pins.ended["returned"] > 0
    assert sum(counts.pins.ended.values()) > counts.pins.ended["returned"]
