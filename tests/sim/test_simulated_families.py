"""Sub-agents in a simulation, where a step takes a second and gives every request in it one token."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_command import make_settings
from made_simulation import ConstantGpu, run_jobs
from recorded_lines import HEADER, make_line, write_recording

from agentcache.engine.marks import read_agent
from agentcache.engine.scheduler import AgentScheduler
from agentcache.jobs.context_job import ContextJob, ContextWriter, find_ordinary_tokens
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.report.events import read_events
from agentcache.report.policy_run import PolicyRun, group_by_policy
from agentcache.sim.command import simulate
from tool_runtime.agent.job import Context, Job, Start, ToolCall, ToolResult, Turn

BLOCK = 16


def turn(first: int, reply: int, tool_s: float | None = None) -> Turn:
    """A request of a block of its own."""
    calls = () if tool_s is None else (ToolCall("look", "{}"),)
    results = () if tool_s is None else (ToolResult("", tool_s),)
    return Turn(tool_calls=calls, results=results, context=Context((first,), BLOCK, BLOCK, reply))


def agent(name: str, start: Start, *turns: Turn) -> Job:
    return Job("family", (), turns=turns, thread=name, start=start)


def run(model_path: str, out: Path, *jobs: Job) -> PolicyRun:
    writer = ContextWriter(find_ordinary_tokens(LocalTokenizer(model_path)))
    return run_jobs(model_path, [ContextJob(job, writer) for job in jobs], out, ConstantGpu())


def times(events: PolicyRun) -> dict[tuple[str | None, int], tuple[float, float]]:
    return {(each.thread, each.turn): (each.sent_s, each.finished_s) for each in events.requests}


def test_a_parent_goes_on_when_all_have_ended_that_it_waits_for(tiny_model_path: str, tmp_path: Path) -> None:
    agents = (
        agent("fast", Start(None, 0, 1.0, is_awaited=True), turn(10, 2)),
        agent("slow", Start(None, 0, 0.0, is_awaited=True), turn(20, 3, tool_s=2.0), turn(21, 4)),
        agent("left", Start(None, 0, 0.0, is_awaited=False), turn(30, 40)),
        agent("inner", Start("slow", 0, 1.0, is_awaited=False), turn(40, 2)),
    )
    job = Job("family", (), turns=(turn(1, 5, tool_s=3.0), turn(2, 2)), agents=agents)
    events = run(tiny_model_path, tmp_path, job)
    assert times(events) == {
        (None, 0): (0.0, 5.0),
        ("slow", 0): (5.0, 8.0),
        ("fast", 0): (6.0, 8.0),
        ("inner", 0): (9.0, 11.0),
        ("slow", 1): (10.0, 14.0),
        # What was recorded behind the last of them takes as long as it did.
        (None, 1): (17.0, 19.0),
        ("left", 0): (5.0, 45.0),
    }
    [ended] = events.jobs
    assert (ended.job, ended.started_s, ended.finished_s, ended.turns) == ("family", 0.0, 19.0, 2)
    assert [(call.thread, call.started_s, call.finished_s) for call in events.tool_calls] == [
        ("slow", 8.0, 10.0),
        (None, 14.0, 17.0),
    ]


def test_a_faster_sub_agent_makes_its_family_faster(tiny_model_path: str, tmp_path: Path) -> None:
    ends = []
    for reply in (30, 3):
        agents = (agent("a", Start(None, 0, 0.0, is_awaited=True), turn(10, reply)),)
        job = Job("family", (), turns=(turn(1, 2), turn(2, 2)), agents=agents)
        (out := tmp_path / str(reply)).mkdir()
        ends.append(run(tiny_model_path, out, job).jobs[0].finished_s)
    assert ends == [34.0, 7.0]


def test_requests_say_of_which_session_and_agent_they_are(
    tiny_model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    add = AgentScheduler.add_request

    def note(self: AgentScheduler, request: object) -> None:
        asked.append((request.session_id, read_agent(request)))  # type: ignore[attr-defined, arg-type]
        add(self, request)  # type: ignore[arg-type]

    monkeypatch.setattr(AgentScheduler, "add_request", note)
    agents = (agent("a", Start(None, 0, 0.0, is_awaited=True), turn(10, 2)),)
    run(tiny_model_path, tmp_path, Job("family", (), turns=(turn(1, 2), turn(2, 2)), agents=agents))
    assert asked == [("family", None), ("family", "a"), ("family", None)]


@pytest.mark.parametrize("policy", ["vllm", "agentcache"])
@pytest.mark.parametrize("lanes", [None, 2], ids=["open", "closed"])
@pytest.mark.usefixtures("without_plots")
def test_a_recorded_family_is_simulated(tmp_path: Path, policy: str, lanes: int | None) -> None:
    """The second session's sub-agent repeats its first prompt, as a fork does."""
    lines = []
    for number in range(2):
        own = [100 * number + place for place in range(1, 40)]
        for time, blocks, names in (
            (0, own[:10], {}),
            (200, [*own[:10], *own[20:30]] if number else own[20:30], {"thread": "a"}),
            (400, own[:15], {}),
        ):
            line = make_line(10 * number + time, 64 * len(blocks), 10, [*blocks], session=f"{number}", **names)
            lines.append(line)
    path = write_recording(
        tmp_path / "r.jsonl", *sorted(lines, key=lambda line: line["timestamp"]), header={**HEADER, "block_tokens": 64}
    )
    loop = {} if lanes is None else {"concurrency": lanes, "duration_s": 5.0, "warm_up": 0}
    settings = make_settings(
        tmp_path / "out", workload=f"recording:{path}", kv_tokens=50_000, policies=(policy,), **loop
    )
    status, _ = simulate(settings)
    events = group_by_policy(read_events(tmp_path / "out"))[policy]
    assert status == 0
    assert {request.thread for request in events.requests} == {None, "a-1"}
    if lanes is None:
        assert [(job.status, job.turns) for job in events.jobs] == [("finished", 2)] * 2
        [fork] = [each for each in events.requests if each.thread and each.job.endswith("-1")]
        assert fork.cached_tokens is not None
        assert fork.cached_tokens >= 10 * 64 - 16
    else:
        assert {job.status for job in events.jobs} <= {"finished", "interrupted"}
        assert not events.open_jobs
