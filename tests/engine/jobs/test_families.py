"""Sub-agents are one job with their main agent, and worth nothing once they are over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from chats import Messages, do, find_hashes, finish
from lone_scheduler import LoneScheduler
from steered_scheduler import learn_that_tools_are_fast, make_lone, make_patient, tokens_of
from tracked_requests import ASKED, TASK, Tracked

from agentcache.engine.constants import AGENT_ARGUMENT, EXPECTED_ARGUMENT, PARENT_ARGUMENT
from agentcache.engine.rpc.core_calls import release
from agentcache.engine.rpc.job_views import view_session
from agentcache.engine.views import JobView
from agentcache.policy.runtime_policy import Order, RuntimePolicy

MAIN, KIND = ("s", tokens_of(1, 60)), ("s", tokens_of(5, 60))


def make(model_path: str, in_flight: int = 1) -> LoneScheduler:
    """What finished turns left is pinned for as long as nothing goes on from it."""
    lone = make_patient(model_path, "agentcache", 160, in_flight=in_flight, pins={"budget": 1.0})
    learn_that_tools_are_fast(lone)
    return lone


def result(number: int) -> tuple[str, list[int]]:
    return "t", tokens_of(100 + number, 30)


def work(lone: LoneScheduler, name: str, system: tuple[str, list[int]], agent: str | None = None) -> Messages:
    """Two turns, of which a sub-agent's second is its answer."""
    messages = do(lone, f"{name} 0", [system, ("u", tokens_of(sum(map(ord, name)), 20))], agent=agent)
    if agent is None:
        return messages
    return do(lone, f"{name} 1", [*messages, result(ord(name[0]))], agent=agent, is_answer=True)


def view(lone: LoneScheduler) -> JobView:
    (job,) = view_session(lone.scheduler.tracker, "s")
    return job


def find_free(lone: LoneScheduler) -> list[bytes]:
    """The hashes of free blocks with KV, next victim first."""
    free = lone.pool.free_block_queue.get_all_free_blocks()
    return [block.block_hash[:-4] for block in free if block.block_hash is not None]


def are_first(lone: LoneScheduler, left: Sequence[bytes]) -> bool:
    return set(find_free(lone)[: len(left)]) == set(left)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_answered_agents_are_worthless_once_the_parent_goes_on(tiny_model_path: str, in_flight: int) -> None:
    lone = make(tiny_model_path, in_flight)
    main = work(lone, "main", MAIN)
    agents = {name: work(lone, name, KIND, name) for name in ("a", "b")}
    assert [(agent.name, agent.parent, agent.turns, agent.state) for agent in view(lone).agents] == [
        ("a", None, 2, "waiting"),
        ("b", None, 2, "waiting"),
    ]
    others = set(find_hashes(lone, main))
    own = [block for chat in agents.values() for block in find_hashes(lone, chat) if block not in others]
    both = set(find_hashes(lone, agents["a"])) & set(find_hashes(lone, agents["b"]))
    do(lone, "main 1", [*main, result(0)])
    assert [agent.state for agent in view(lone).agents] == ["over", "over"]
    left = [block for block in own if block not in both][-8:]
    assert are_first(lone, find_free(lone)[: len(left)])
    assert set(left) <= set(find_free(lone)[: 2 * len(own)])
    free = find_free(lone)
    last = max(free.index(each) for each in left)
    assert min(map(free.index, both)) > last, "others of its kind begin so"
    assert {pin.cause for pin in view(lone).pins if pin.turn < 5} <= {"returned", "job over", None}
    assert view(lone).waits_for == ("search",)


def test_an_agent_in_the_background_is_over_when_it_answers(tiny_model_path: str) -> None:
    lone = make(tiny_model_path)
    main = work(lone, "main", MAIN)
    chat = do(lone, "a 0", [KIND, ("u", tokens_of(7, 20))], agent="a")
    do(lone, "main 1", [*main, result(0)])
    do(lone, "a 1", [*chat, result(1)], agent="a", is_answer=True)
    (agent,) = view(lone).agents
    assert agent.state == "over"
    assert [pin.turn for pin in view(lone).pins if pin.ended_s is None] == [2], "the main agent's"


def test_a_client_may_end_one_agent_and_not_the_job(tiny_model_path: str) -> None:
    lone = make(tiny_model_path)
    work(lone, "main", MAIN)
    chat = do(lone, "a 0", [KIND, ("u", tokens_of(7, 20))], agent="child")
    assert release(lone.scheduler.tracker, "child", [None]) == ["child"]
    assert [agent.state for agent in view(lone).agents] == ["over"]
    lone.scheduler.frees.step()
    assert not view(lone).is_over
    assert set(find_hashes(lone, chat)[-2:]) <= set(find_free(lone)[:6])
    assert release(lone.scheduler.tracker, "child", ["other"]) == []


def test_what_family_members_share_is_pinned_and_counted_once(tiny_model_path: str) -> None:
    lone = make(tiny_model_path)
    main = work(lone, "main", MAIN)
    pins = lone.scheduler.tracker.pins
    before = pins.blocks
    fork = [*main, result(0)]
    do(lone, "a 0", [*main[:2], ("u", tokens_of(8, 20))], agent="a")
    shared = len(set(find_hashes(lone, main)) & set(find_hashes(lone, [*main[:2], ("u", []), ("a", [])])))
    assert shared > 2
    assert pins.blocks < 2 * before
    do(lone, "main 1", fork)
    lone.scheduler.check_integrity()


def test_awaited_agents_go_before_those_in_the_background() -> None:
    tracked = Tracked(RuntimePolicy(order=Order()))
    tracked.turn("main", ASKED, session="s", calls=[TASK])
    tracked.clock.now_s += 9.0

    def find_seniority(name: str, expected: dict[str, Any] | None = None, parent: str | None = None) -> float:
        told = {AGENT_ARGUMENT: name, EXPECTED_ARGUMENT: expected, PARENT_ARGUMENT: parent}
        request = tracked.ask(name, [*ASKED, ord(name)], session="s", marks={k: v for k, v in told.items() if v})
        return tracked.clock.now_s - tracked.tracker.priority_of(request).time_s

    assert [find_seniority(name) for name in "abc"] == pytest.approx([10.0, 5.0, 10 / 3]), "siblings share it"
    assert find_seniority("d", {"blocks_parent": False}) == 0.0
    assert find_seniority("e", parent="d") == 0.0, "its parent is not awaited"
    assert find_seniority("f", {"blocks_parent": False, "priority": 4}) == 4.0
    stranger = tracked.ask("x", [*ASKED, 7], session="other")
    assert tracked.tracker.priority_of(stranger).time_s == tracked.clock.now_s


def test_a_promise_keeps_the_blocks_so_long_and_no_longer(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, "agentcache", 160, pins={"budget": 1.0})
    for number in range(2):
        marks = {EXPECTED_ARGUMENT: {"kv_retention_ttl_seconds": 5.0}}
        lone.add(f"{number}", tokens_of(number, 90), 100, reply=[1, 2], marks=marks, session_id=f"{number}", calls=())
        finish(lone)
        assert len(lone.scheduler.tracker.pins) == 1, "after an answer nothing would be kept"
        lone.scheduler.clock.now_s += 6.0
        lone.scheduler.tracker.step()
        assert len(lone.scheduler.tracker.pins) == 0
    assert not lone.scheduler.tracker.families.promises.given, "both were broken"
