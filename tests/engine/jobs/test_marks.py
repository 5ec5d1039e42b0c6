"""A front end other than Python's may send the engine core any marks: what is told wrongly ends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config, make_scheduler
from told_requests import END
from tracked_requests import BLOCK, Tracked
from vllm import SamplingParams
from vllm.v1.request import Request

from agentcache.engine.constants import (
    AGENT_ARGUMENT,
    CALLS_ARGUMENT,
    CONTINUES_ARGUMENT,
    FILL_MARK,
    LEFT_ARGUMENT,
    QUESTIONS_ARGUMENT,
    REPLY_ARGUMENT,
    ROLES_ARGUMENT,
    SCHEDULER_CLASS,
    TOOL_CHOICE_ARGUMENT,
    TOOLS_DECLARED_ARGUMENT,
)
from agentcache.engine.marks import read_agent, read_left, read_predecessor, read_questions, read_roles
from agentcache.engine.rpc.job_views import view_session
from agentcache.policy.runtime_policy import RuntimePolicy

WRONG: list[Mapping[str, Any]] = [
    {ROLES_ARGUMENT: "z"},
    {ROLES_ARGUMENT: "u" * 10_000},
    {ROLES_ARGUMENT: ["u"]},
    {ROLES_ARGUMENT: 7},
    {TOOLS_DECLARED_ARGUMENT: ["a", 1]},
    {TOOLS_DECLARED_ARGUMENT: [["a"]]},
    {TOOLS_DECLARED_ARGUMENT: ["a"] * 10_000},
    {TOOLS_DECLARED_ARGUMENT: "a"},
    {CONTINUES_ARGUMENT: ["resp_1"]},
    {CONTINUES_ARGUMENT: 7},
    {LEFT_ARGUMENT: -5},
    {LEFT_ARGUMENT: True},
    {LEFT_ARGUMENT: "9"},
    {TOOL_CHOICE_ARGUMENT: {"name": 1}},
    {REPLY_ARGUMENT: None, CALLS_ARGUMENT: "[["},
    {REPLY_ARGUMENT: "z", CALLS_ARGUMENT: '[["a", 1]]'},
    {REPLY_ARGUMENT: [0], CALLS_ARGUMENT: 7},
]


@pytest.mark.parametrize("marks", WRONG, ids=lambda marks: f"{marks}"[:40])
def test_a_mark_of_a_wrong_kind_is_no_mark(marks: dict[str, Any]) -> None:
    tracked = Tracked(RuntimePolicy(factors=True))
    head = [1] * 2 * BLOCK
    # One message by its end-of-turn tokens, which a changed prompt's roles are counted by.
    prompts = ([*head, *[7] * 2 * BLOCK], [*head, 8, END, *[9] * 2 * BLOCK])
    known = {TOOLS_DECLARED_ARGUMENT: ["a"]}
    for number, (prompt, told) in enumerate(zip(prompts, (known, marks), strict=True)):
        request = tracked.ask(f"{number}", prompt, session="s", calls=None, marks=told, end_of_turn=END)
        tracked.admit(request)
        tracked.reply(request)
    assert (read_roles(request), read_left(request), read_predecessor(request)) == ("", 0, None)
    (view,) = view_session(tracked.tracker, "s")
    assert [turn.status for turn in view.turns] == ["finished", "finished"]


@pytest.mark.parametrize("told", [None, 7, "ab", ["a"], [["a"], "b"], {"a": 1}])
def test_questions_of_another_shape_are_none(told: object) -> None:
    request = Request("a", [1], SamplingParams(extra_args={QUESTIONS_ARGUMENT: told, AGENT_ARGUMENT: told}), None)
    assert read_questions(request).asked is None
    assert read_agent(request) == (told if isinstance(told, str) else None)


def test_blocks_are_taken_for_the_request_that_asks(tiny_model_path: str) -> None:
    lone = LoneScheduler(make_scheduler(make_config(tiny_model_path, SCHEDULER_CLASS, policy="agentcache"), 24))
    prompt = list(range(10, 10 + 8 * BLOCK_SIZE + 1))
    lone.add("first", prompt, 2, calls=[], session_id="loser")
    while not lone.idle:
        lone.step()
    lone.add("victim", list(range(2000, 2100)), 60, calls=[], session_id="innocent")
    for _ in range(4):
        lone.step()
    lone.add(f"victim{FILL_MARK}1", list(range(3000, 3000 + 16 * BLOCK_SIZE)), 2, calls=[], session_id="taker")
    while not lone.idle:
        lone.step()
    lone.add("second", prompt, 2, calls=[], session_id="loser")
    while not lone.idle:
        lone.step()
    (job,) = view_session(lone.scheduler.tracker, "loser")
    assert {loss.taker for loss in job.turns[-1].lost_to} == {"taker"}
