"""Requests that a search makes of one of its client's: nobody's turns, and one line of a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lone_scheduler import LoneScheduler, make_config, make_scheduler
from vllm import SamplingParams
from vllm.v1.request import Request

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.marks import is_search_step
from agentcache.engine.observe.recorder import SearchSteps
from agentcache.engine.rpc.job_views import count_runtime, view_jobs
from tool_runtime.agent.job import ToolCall

PROMPT = [1, 2, 3]
WIDTH = 4


def make_step(prompt: list[int] = PROMPT, *, salt: str | None = None, **asked: Any) -> Request:
    params = SamplingParams(**{"max_tokens": 1, "logprobs": 4, **asked})
    return Request(f"cmpl-1-{len(prompt)}-beam-0", prompt, params, None, cache_salt=salt)


@pytest.mark.parametrize(
    ("asked", "is_step"),
    [
        ({}, True),
        ({"logprobs": None, "logprob_token_ids": [7, 8]}, True),
        # A health probe, a classification: somebody gets the text.
        ({"logprobs": None}, False),
        ({"max_tokens": 2}, False),
        ({"extra_args": {"kv_transfer_params": {"do_remote_decode": True}}}, False),
    ],
    ids=["beam", "labels", "probe", "chat", "prefilled for another engine"],
)
def test_what_is_a_step_of_a_search(asked: dict[str, Any], *, is_step: bool) -> None:
    assert is_search_step(make_step(**asked)) is is_step


def test_a_chat_is_no_step_whatever_its_client_calls_it() -> None:
    assert not is_search_step(Request("chatcmpl-1-beam-0", PROMPT, SamplingParams(max_tokens=9), None))


def test_a_search_begins_once() -> None:
    steps = SearchSteps()
    searched = [PROMPT, *([*PROMPT, token] for token in (7, 8)), *([*PROMPT, 8, token] for token in (5, 6))]
    assert [steps.begins_search(make_step(prompt)) for prompt in searched] == [True, *[False] * 4]
    assert steps.begins_search(make_step(PROMPT)), "the same asked again"
    assert steps.begins_search(make_step([*PROMPT, 8], salt="another tenant's"))
    assert [steps.begins_search(make_step([])) for _ in range(2)] == [True, True]


def test_a_beam_search_is_no_job_and_one_line(tiny_model_path: str, tmp_path: Path) -> None:
    """It leaves the agent that waits in a full table, and counts as no failure."""
    file = tmp_path / "record.jsonl"
    config = make_config(
        tiny_model_path,
        SCHEDULER_CLASS,
        policy="agentcache",
        record={"file": str(file)},
        tuning={"max_jobs": 2, "record_block_tokens": 16},
    )
    engine = LoneScheduler(make_scheduler(config, 64))
    engine.add("agent", list(range(40)), 4, calls=[ToolCall("bash", "{}")], session_id="agent")
    while not engine.idle:
        engine.step()
    beams = [list(range(100, 150))]
    for number in range(10):
        for beam, prompt in enumerate(beams):
            name = f"cmpl-1-{number:016x}-beam-{beam}-01234567"
            engine.add(name, prompt, 1, logprobs=2 * WIDTH, session_id="searched")
        while not engine.idle:
            engine.step()
        beams = [[*beams[beam % len(beams)], 200 + beam] for beam in range(WIDTH)]
    tracker = engine.scheduler.tracker
    assert [(view.session, view.waits_for, view.failure_count) for view in view_jobs(tracker)] == [
        ("agent", ("bash",), 0)
    ]
    assert count_runtime(tracker).found_jobs == {"named": 1}
    for close in engine.scheduler.observers.find_own("close"):
        close()
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [(line["input_length"], line["output_length"], "session" in line) for line in lines] == [
        (40, 4, True),
        (50, 1, True),
    ]
