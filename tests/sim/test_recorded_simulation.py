"""What a scheduler records, simulated again: it is the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_command import make_settings

from agentcache.report.events import RequestEvent, read_events
from agentcache.sim.command import simulate

pytestmark = pytest.mark.usefixtures("without_plots")


def _requests(out: Path) -> list[RequestEvent]:
    return [event for event in read_events(out) if isinstance(event, RequestEvent)]


def _hits(requests: list[RequestEvent]) -> float:
    return sum(each.cached_tokens or 0 for each in requests) / sum(each.prompt_tokens for each in requests)


@pytest.mark.parametrize("policy", ["vllm", "agentcache"])
def test_a_recorded_run_is_simulated_as_it_was(policy: str, tmp_path: Path) -> None:
    record: dict[str, Any] = {"file": str(tmp_path / "r.jsonl"), "block_tokens": 64}
    first = make_settings(tmp_path / "first", policies=(policy,), knobs={"record": record})
    assert simulate(first)[0] == 0
    again = make_settings(tmp_path / "again", policies=(policy,), workload=f"recording:{tmp_path / 'r.jsonl'}")
    assert simulate(again)[0] == 0
    before, after = _requests(first.out), _requests(again.out)
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert len(lines) == len(before) == len(after)
    # Lines stand in the order in which the engine was done, events in the order in which the replies came.
    assert sorted(each.get("cached_length", 0) for each in lines) == sorted(each.cached_tokens or 0 for each in before)
    assert sorted((each.prompt_tokens, each.output_tokens) for each in before) == sorted(
        (each.prompt_tokens, each.output_tokens) for each in after
    )
    assert abs(_hits(before) - _hits(after)) < 0.03
    ends = [max(each.finished_s for each in requests) for requests in (before, after)]
    assert ends[1] == pytest.approx(ends[0], rel=0.03)
