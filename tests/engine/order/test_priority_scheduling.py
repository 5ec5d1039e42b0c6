"""vLLM's --scheduling-policy priority beside policies that have an order of jobs."""

from __future__ import annotations

import pytest
from steered_scheduler import make_lone, run_until_idle, tokens_of

WARNING = "Requests keep the order of --scheduling-policy priority."
BY_PRIORITY = {"scheduling_policy": "priority", "max_num_seqs": 1}


@pytest.mark.parametrize("policy", ["agentcache", "continuum-code"])
def test_requests_keep_vllms_priorities_and_one_line_says_so(
    tiny_model_path: str, vllm_log: pytest.LogCaptureFixture, policy: str
) -> None:
    lone = make_lone(tiny_model_path, policy, engine=BY_PRIORITY, gpu="h200")
    assert vllm_log.messages.count(WARNING) == 1
    # The order of jobs would be that of their arrival.
    for number, priority in enumerate((2, 0, 1)):
        name = f"job {priority}"
        lone.add(name, tokens_of(number, 40), output_tokens=2, calls=(), session_id=name, priority=priority)
    ended = [name for step in run_until_idle(lone) for name in step.finished]
    assert ended == ["job 0", "job 1", "job 2"]
    assert not lone.scheduler.hooks.choose_victim, "vLLM preempts whom it would"


@pytest.mark.parametrize(("policy", "engine"), [("agentcache", {}), ("asymcache", BY_PRIORITY)])
def test_where_no_order_gives_way_nothing_is_said(
    tiny_model_path: str, vllm_log: pytest.LogCaptureFixture, policy: str, engine: dict[str, object]
) -> None:
    make_lone(tiny_model_path, policy, engine=engine, gpu="h200")
    assert not [line for line in vllm_log.messages if "keep the order" in line]
