"""Sub-agents of a recording: where they begin, who waits for them, and what no line can make of them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from recorded_lines import make_line, write_recording

from tool_runtime.agent.job import Job, Start
from workloads.recording.sessions import load_sessions


def load(path: Path, *lines: dict[str, Any], **options: Any) -> list[Job]:
    """Load requests of one session, in the order of their ends."""
    ordered = sorted(lines, key=lambda line: line["timestamp"] + line["latency_ms"])
    write_recording(path / "r.jsonl", *ordered)
    return load_sessions(path / "r.jsonl", **{"jobs": None, "max_context": None, "max_gap_s": None, **options}).jobs


def ask(timestamp: float, *agent: str, tokens: int = 20, **changes: Any) -> dict[str, Any]:
    """A request of a thread with a parent, of the main agent for none; its blocks are of its time alone."""
    names = dict(zip(("thread", "parent"), agent, strict=False))
    ids = [int(timestamp) * 1000 + place for place in range(1 + tokens // 10)]
    return make_line(timestamp, tokens, 10, ids, session="s", **names, **changes)


def test_a_sub_agent_begins_behind_a_turn_that_waits_for_it(tmp_path: Path) -> None:
    lines = ask(0), ask(150, "a"), ask(450, "a"), ask(800), ask(1000)
    [job] = load(tmp_path, *lines)
    [agent] = job.agents
    assert (job.id, job.thread, len(job.turns)) == ("0-s", None, 3)
    assert (agent.id, agent.name, len(agent.turns)) == ("0-s", "0-s/a-1", 2)
    assert agent.start == Start(None, 0, 0.05, is_awaited=True)
    # Its last reply came at 550 ms.
    assert [turn.pause_s for turn in job.turns] == [0.25, 0.1, 0.0]


def test_nobody_waits_for_what_outlives_the_next_request(tmp_path: Path) -> None:
    [job] = load(tmp_path, ask(0), ask(150, "a", latency_ms=500), ask(600), ask(900))
    assert job.agents[0].start == Start(None, 0, 0.05, is_awaited=False)
    assert [turn.pause_s for turn in job.turns] == [0.5, 0.2, 0.0]


def test_siblings_and_their_children_are_one_family(tmp_path: Path) -> None:
    lines = ask(0), ask(100, "a"), ask(100, "b"), ask(250, "c", "a"), ask(400, "a"), ask(600)
    [job] = load(tmp_path, *lines)
    assert [(agent.thread, agent.start) for agent in job.agents] == [
        ("a-1", Start(None, 0, 0.0, is_awaited=True)),
        ("b-2", Start(None, 0, 0.0, is_awaited=True)),
        ("c-3", Start("a-1", 0, 0.05, is_awaited=True)),
    ]
    assert job.agents[0].turns[0].pause_s == 0.05
    assert job.turns[0].pause_s == 0.1


def test_what_a_sub_agent_asks_at_once_is_told_apart(tmp_path: Path) -> None:
    [job] = load(tmp_path, ask(0), ask(200, "a"), ask(250, "a"), ask(400, "a"))
    assert [(agent.thread, len(agent.turns)) for agent in job.agents] == [("a-1", 1), ("a-2", 2)]


def test_what_began_behind_a_cut_is_left_out(tmp_path: Path) -> None:
    lines = ask(0), ask(200, "a"), ask(400, tokens=90), ask(600, "b"), ask(800, "c", "b")
    [job] = load(tmp_path, *lines, max_context=50)
    assert len(job.turns) == 1
    # It has no turn any more that could wait.
    assert [agent.start for agent in job.agents] == [Start(None, 0, 0.1, is_awaited=False)]
    [job] = load(tmp_path, ask(0), ask(200, "a", tokens=90), ask(400, "b", "a"), ask(800), max_context=50)
    assert (job.agents, job.turns[0].pause_s) == ((), 0.7)


def test_waits_for_a_sub_agent_are_cut_as_others(tmp_path: Path) -> None:
    [job] = load(tmp_path, ask(0), ask(9_100, "a"), ask(20_000), max_gap_s=2.0)
    assert job.agents[0].start == Start(None, 0, 2.0, is_awaited=True)
    assert job.turns[0].pause_s == 2.0


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([ask(0), ask(200, "a", "gone")], id="an unknown parent"),
        pytest.param([ask(0), ask(200, "a", "a")], id="its own parent"),
        pytest.param([ask(0), ask(50, "a")], id="before any reply of its parent"),
        pytest.param([ask(0, "a"), ask(200)], id="before its parent"),
        pytest.param([ask(0, "a", "b"), ask(50, "b", "a")], id="a circle"),
    ],
)
def test_who_has_no_parent_yet_is_a_job_of_its_own(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    jobs = load(tmp_path, *lines)
    assert [(job.agents, job.start, len(job.turns)) for job in jobs] == [((), None, 1)] * 2
    assert len({job.id for job in jobs}) == 2


def test_a_circle_ends_where_it_began(tmp_path: Path) -> None:
    """The first of it is a job, as nothing is known of the other yet."""
    [job] = load(tmp_path, ask(0, "a", "b"), ask(200, "b", "a"), ask(400, "a", "b"))
    assert (job.thread, len(job.turns)) == ("a-0", 2)
    assert [(agent.thread, agent.start.parent) for agent in job.agents if agent.start] == [("b-1", "a-0")]


@pytest.mark.parametrize("deep", [False, True], ids=["of one", "each of the one before"])
def test_ten_thousand_children_are_played(tmp_path: Path, *, deep: bool) -> None:
    children = [
        ask(200.0 * (number + 1), f"{number}", *([f"{number - 1}"] if deep and number else []))
        for number in range(10_000)
    ]
    [job] = load(tmp_path, ask(0), *children)
    assert len(job.agents) == 10_000
    assert len(pickle.dumps(job)) > 10_000
    parents = {agent.start.parent for agent in job.agents if agent.start}
    assert len(parents) == (10_000 if deep else 1)


def test_names_that_look_alike_stay_apart(tmp_path: Path) -> None:
    jobs = load(tmp_path, ask(0, "a-1"), ask(200, "a", "a-1"), ask(200, "a-1", "a-1"), ask(400, "b", "a"))
    names = [each.name for job in jobs for each in job.family]
    assert len(set(names)) == len(names) == 3
