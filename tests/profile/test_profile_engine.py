"""`agentcache profile` on the real CPU engine: what it says that it measured is what the engine computed."""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from loaded_once import get_context

from agentcache.policy.cost import ProfileKey, read_profile
from agentcache.profile.command import ENGINE_LOG, profile
from agentcache.profile.settings import ProfileSettings

pytestmark = pytest.mark.engine


def profile_tiny(out: Path, said: Path) -> int:
    """The status. In a process of its own: its engine takes what all engines share with it."""
    options = ("--block-size", "32", "--max-num-batched-tokens", "1024", "--max-num-seqs", "16")
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
    return profile(ProfileSettings(model="tiny", out=out, points=24, max_tokens=1536, engine_options=options))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, forkserver: None) -> Path:  # noqa: ARG001 (it forks)
    parent = tmp_path_factory.mktemp("profile")
    folder, printed = parent / "out", parent / "printed"
    with ProcessPoolExecutor(1, mp_context=get_context()) as pool:
        status = pool.submit(profile_tiny, folder, printed).result()
    said = printed.read_text()
    log = folder / ENGINE_LOG
    assert status == 0, said + (log.read_text()[-3000:] if log.exists() else "")
    assert "host's memory: no link to measure, for the engine runs on no CUDA device" in said
    assert "measured 24 of 24 points" in said
    assert "cost model: 20 prefills, R²" in said
    return folder


def test_every_step_has_the_rows_that_its_point_asks_for(out: Path) -> None:
    lines = [json.loads(line) for line in (out / "tiny_cpu_tp1_float32.points.jsonl").read_text().splitlines()]
    assert len(lines) == 24
    together = 0
    for line in lines:
        point, steps = line["point"], [rows for rows, _ in line["steps"]]
        if "decodes" in point:
            decodes, *mixed = steps
            assert [query for query, _ in decodes] == [1] * point["decodes"]
            assert all(0 <= context - point["context"] < 400 for _, context in decodes)
            assert all(prefill in step for step, prefill in zip(mixed, point["prefills"], strict=True))
            continue
        l1, q1, l2, q2 = (point[name] for name in ("l1", "q1", "l2", "q2"))
        assert sum(query for step in steps for query, _ in step) == q1 + q2
        if q1 and l2 and q1 + q2 <= 1024:
            # Multi-Segment Attention: the gap and the rest in one step, the rest behind the second cached part.
            assert steps == [[[q1, l1], [q2, l1 + q1 + l2]]]
            together += 1
    assert together >= 5


def test_a_profile_is_written(out: Path) -> None:
    key = ProfileKey(model="tiny", gpu="cpu", tensor_parallel_size=1, dtype="float32")
    profile = read_profile(out / key.file_name)
    assert profile.measured
    assert profile.link is None
    # What catalog.py gives the tiny model, over its bytes a token.
    assert profile.kv_tokens is not None
    assert profile.kv_tokens > 100_000
    assert profile.batches == 20
    assert profile.steps is not None
    assert profile.steps.count >= 32
    assert profile.steps.step_cost.prefill_s(1024) > profile.steps.step_cost.prefill_s(16) > 0
