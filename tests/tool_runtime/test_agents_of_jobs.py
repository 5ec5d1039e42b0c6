"""The sub-agents of a job: who waits for whom, and who is over."""

from __future__ import annotations

from tool_runtime.learning.job_entry import MAX_AGENTS, Agent, JobEntry, PendingTurn
from tool_runtime.learning.tool_key import HUMAN, ToolKey

TASK = ToolKey("task")


def make(*agents: tuple[str, str | None], began_s: float = 2.0) -> JobEntry:
    entry = JobEntry("job", 0.0, 0.0, 1)
    entry.pending["main 0"] = PendingTurn(TASK, 1.0, 0)
    for name, parent in agents:
        entry.find_agent(name, parent, began_s)
    return entry


def end_turn(entry: JobEntry, name: str, at_s: float, key: ToolKey = HUMAN) -> Agent:
    agent = entry.agents[name]
    agent.running -= 1
    agent.turn = f"{name} {at_s}"
    entry.pending[agent.turn] = PendingTurn(key, at_s, 0)
    return agent


def test_an_agent_is_awaited_until_its_parent_goes_on() -> None:
    entry = make(("a", None))
    assert entry.is_awaited(entry.agents["a"])
    del entry.pending["main 0"]
    assert not entry.is_awaited(entry.agents["a"])
    entry.pending["main 1"] = PendingTurn(TASK, 3.0, 0)
    assert not entry.is_awaited(entry.agents["a"]), "it began before that call"


def test_nobody_waits_for_the_agent_of_one_in_the_background() -> None:
    entry = make(("a", None))
    end_turn(entry, "a", 3.0, TASK)
    below = entry.find_agent("b", "a", 4.0)
    assert entry.is_awaited(below)
    del entry.pending["main 0"]
    assert not entry.is_awaited(below)


def test_what_a_client_says_of_waits_counts() -> None:
    entry = make()
    assert not entry.is_awaited(entry.find_agent("a", None, 2.0, blocks=False))
    del entry.pending["main 0"]
    assert entry.is_awaited(entry.find_agent("b", None, 2.0, blocks=True))


def test_answered_agents_are_over_once_their_parent_goes_on() -> None:
    entry = make(("a", None), ("b", None), ("c", "a"), ("d", None))
    for name, key in (("a", HUMAN), ("b", TASK), ("c", HUMAN)):
        end_turn(entry, name, 3.0, key)
    assert [agent.name for agent in entry.end_answered(None)] == ["a"]
    assert set(entry.pending) == {"main 0", "b 3.0", "c 3.0"}
    assert entry.end_answered(None) == []
    assert [agent.name for agent in entry.end_answered("a")] == ["c"]
    assert not entry.find_agent("a", None, 9.0).is_over, "it was asked again"


def test_a_link_that_would_close_a_circle_is_none() -> None:
    entry = make(("a", "b"), ("b", "c"), ("c", "a"), ("d", "d"))
    assert [agent.parent for agent in entry.agents.values()] == ["b", "c", None, None]
    assert all(entry.is_awaited(agent) in (True, False) for agent in entry.agents.values())


def test_of_10_000_agents_those_that_are_over_go_first() -> None:
    entry = make(("kept", None), ("over", None))
    entry.end_agent(entry.agents["over"])
    for number in range(MAX_AGENTS - 1):
        entry.find_agent(f"{number}", "kept", 3.0)
    assert ("kept" in entry.agents, "over" in entry.agents) == (True, False)
    for number in range(10_000):
        entry.find_agent(f"{number}", f"{number - 1}", 3.0)
    assert len(entry.agents) == MAX_AGENTS
    assert "kept" not in entry.agents
