from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from fake_server import MODEL, REPLY_ARGUMENT, FakeServer, encode
from made_job import CharacterTokenizer, make_job, make_turn, record
from made_recordings import make_session, make_short_sessions, write_sessions
from rich.console import Console

from agentcache.jobs.context_job import ContextJob, ContextWriter
from agentcache.jobs.loader import load_run
from agentcache.jobs.recorded_job import RecordedJob
from agentcache.jobs.settings import JobSettings
from agentcache.replay.endpoint import Endpoint
from agentcache.replay.runner import ReplayRunner
from agentcache.report.events import (
    EVENTS_FILE,
    MEASURED,
    EventWriter,
    JobEvent,
    RequestEvent,
    ToolCallEvent,
    read_events,
)
from agentcache.report.policy_run import PolicyRun, group_by_policy
from agentcache.run.display import ReplayDisplay
from tool_runtime.agent.job import Context, Job, Message, ToolCall, ToolResult, Turn


class Run:
    """A runner against the fake server, what it wrote and what it showed."""

    def __init__(self, server: FakeServer, folder: Path, jobs: int, headers: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self.shown = io.StringIO()
        self.display = ReplayDisplay("lru", jobs, Console(file=self.shown, width=120))
        endpoint = Endpoint(server.url, "secret", headers=headers)
        writer = EventWriter(folder)
        self.runner = ReplayRunner("lru", endpoint, writer, self.display, block_size=16, request_timeout_s=30.0)

    @property
    def events(self) -> PolicyRun:
        return group_by_policy(read_events(self._folder)).get("lru", PolicyRun())

    def status_of(self, job: str) -> JobEvent:
        (event,) = [event for event in self.events.jobs if event.job == job]
        return event


def run(server: FakeServer, folder: Path, jobs: Sequence[RecordedJob]) -> tuple[int, Run]:
    made = Run(server, folder, len(jobs))
    return asyncio.run(made.runner.run(jobs)), made


def test_jobs_run_at_their_arrivals_and_as_recorded(server: FakeServer, tmp_path: Path) -> None:
    jobs = [record(make_job(f"job-{number}", arrival_s=0.15 * number)) for number in range(3)]
    failed, made = run(server, tmp_path, jobs)
    assert failed == 0
    events = made.events
    assert [(job.status, job.turns, job.error) for job in events.jobs] == [("finished", 3, None)] * 3
    for number, job in enumerate(sorted(events.jobs, key=lambda event: event.job)):
        assert 0.15 * number <= job.started_s < 0.15 * number + 1
    assert len(events.requests) == 9
    assert {call.tool for call in events.tool_calls} == {"look"}
    assert len(events.tool_calls) == 6
    assert "lru: 3/3 jobs, 0 running" in made.shown.getvalue()


def test_headers_go_along_with_each_request(server: FakeServer, tmp_path: Path) -> None:
    made = Run(server, tmp_path, 1, {"X-data-parallel-rank": "2"})
    server.headers.clear()
    assert asyncio.run(made.runner.run([record(make_job())])) == 0
    assert [headers["x-data-parallel-rank"] for headers in server.headers] == ["2", "2", "2"]


def test_prompts_extend_and_the_cache_is_used_as_it_could_be(server: FakeServer, tmp_path: Path) -> None:
    _, made = run(server, tmp_path, [record(make_job())])
    requests = made.events.requests
    assert [request.diverged_at for request in requests] == [None, None, None]
    assert [request.cached_tokens for request in requests] == [request.reusable_tokens for request in requests]
    assert requests[0].reusable_tokens == 0 < requests[1].reusable_tokens < requests[2].reusable_tokens
    for request in requests:
        assert request.first_token_s is not None
        assert request.sent_s <= request.first_token_s <= request.finished_s
        assert request.queue_s == 0.002


def test_each_request_dictates_its_turn_of_the_recording(server: FakeServer, tmp_path: Path) -> None:
    recorded = record(make_job())
    run(server, tmp_path, [recorded])
    assert [body["vllm_xargs"][REPLY_ARGUMENT] for body in server.bodies] == list(recorded.replies)
    for body, reply in zip(server.bodies, recorded.replies, strict=True):
        assert (body["session_id"], body["model"], body["temperature"]) == ("job-0", MODEL, 0)
        assert body["max_completion_tokens"] == len(reply)
        assert body["return_token_ids"] is True
    assert server.bodies[2]["messages"][-1]["content"] == "found it"


def test_tools_take_the_recorded_time_side_by_side(server: FakeServer, tmp_path: Path) -> None:
    job = make_job("job-0", make_turn("a", "b", seconds=0.1), make_turn())
    _, made = run(server, tmp_path, [record(job)])
    first, second = made.events.tool_calls
    assert first.finished_s - first.started_s >= 0.1
    assert second.started_s < first.finished_s
    assert [message["content"] for message in server.bodies[1]["messages"][-2:]] == ["a", "b"]


def test_a_job_that_the_server_refuses_fails_alone(server: FakeServer, tmp_path: Path) -> None:
    server.refused_jobs.add("job-1")
    failed, made = run(server, tmp_path, [record(make_job(f"job-{number}")) for number in range(3)])
    assert failed == 1
    assert [made.status_of(f"job-{number}").status for number in range(3)] == ["finished", "failed", "finished"]
    assert made.status_of("job-1").error == "HTTP 500: the engine is on fire"
    (refused,) = [request for request in made.events.requests if request.job == "job-1"]
    assert (refused.error, refused.first_token_s) == ("HTTP 500: the engine is on fire", None)
    assert "1 failed" in made.shown.getvalue()


def test_a_reply_that_is_not_the_recorded_one_fails_its_job(server: FakeServer, tmp_path: Path) -> None:
    server.follows_replies = False
    failed, made = run(server, tmp_path, [record(make_job())])
    assert failed == 1
    assert made.status_of("job-0").error == "turn 0: the reply left the recording at output token 0"


def test_a_call_that_the_server_does_not_find_fails_its_job(server: FakeServer, tmp_path: Path) -> None:
    server.parsed_calls = 0
    failed, made = run(server, tmp_path, [record(make_job())])
    assert failed == 1
    assert made.status_of("job-0").error == (
        "turn 0: the server's tool parser found the calls [], the recording has ['look']"
    )


def test_a_call_that_is_lost_among_others_fails_its_job(server: FakeServer, tmp_path: Path) -> None:
    server.parsed_calls = 1
    job = make_job("job-0", make_turn("a", "b"), make_turn("c"), make_turn())
    failed, made = run(server, tmp_path, [record(job)])
    assert failed == 1
    assert made.status_of("job-0").status == "failed"


def test_cancelling_records_interrupted_jobs_and_keeps_finished(server: FakeServer, tmp_path: Path) -> None:
    turns = (make_turn("a"), make_turn("b", seconds=60.0), make_turn())
    jobs = [
        record(make_job("done")),
        record(make_job("in a tool", *turns)),
        record(make_job("unanswered")),
        record(make_job("to come", arrival_s=60.0)),
    ]
    server.stalled_jobs.add("unanswered")
    made = Run(server, tmp_path, len(jobs))

    async def interrupt() -> None:
        running = asyncio.create_task(made.runner.run(jobs))
        while len(made.events.requests) < 5 or not made.events.jobs:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(interrupt())
    assert [(job.job, job.status, job.turns) for job in made.events.jobs] == [
        ("done", "finished", 3),
        ("in a tool", "interrupted", 2),
    ]
    assert made.status_of("in a tool").error == "the run was interrupted"
    assert len(server.bodies) == 3 + 2 + 1


def test_every_line_is_on_disk_when_its_job_goes_on(server: FakeServer, tmp_path: Path) -> None:
    seen: list[int] = []
    server.on_request = lambda _body: seen.append(len((tmp_path / EVENTS_FILE).read_text().splitlines()))
    run(server, tmp_path, [record(make_job())])
    # A request and a tool call lie between one request and the next.
    assert seen == [0, 2, 4]
    kinds = [type(event) for event in read_events(tmp_path)]
    turn: list[type] = [RequestEvent, ToolCallEvent]
    assert kinds == [*turn, *turn, RequestEvent, JobEvent]


def test_texts_of_a_result_reach_the_model_as_recorded(server: FakeServer, tmp_path: Path) -> None:
    text = 'Tee – 東京 "quoted"\n{"json": 1}'
    job = make_job("job-0", make_turn(text), make_turn())
    failed, made = run(server, tmp_path, [record(job)])
    assert failed == 0
    assert job.turns[0].results == (ToolResult(text, 0.0),)
    assert server.bodies[1]["messages"][-1]["content"] == text
    assert made.events.requests[1].prompt_tokens > made.events.requests[0].prompt_tokens + len(encode(text))


def test_a_conversation_with_pauses_runs_as_recorded(server: FakeServer, tmp_path: Path) -> None:
    asked: tuple[Message, ...] = ({"role": "user", "content": "And where is the other?"},)
    turns = (make_turn("on the table"), Turn("It is there.", pause_s=0.2, said=asked), Turn("It is here."))
    failed, made = run(server, tmp_path, [record(make_job("job-0", *turns))])
    assert failed == 0
    assert [request.diverged_at for request in made.events.requests] == [None] * 3
    assert made.status_of("job-0").turns == 3
    _, second, third = made.events.requests
    assert 0.2 <= third.sent_s - second.finished_s < 0.3
    assert server.bodies[2]["messages"][-1] == asked[0]


def test_a_job_without_text_runs_as_recorded(server: FakeServer, tmp_path: Path) -> None:
    calls, results = (ToolCall("tool", "{}"),) * 2, (ToolResult("", 0.1), ToolResult("", 0.05))
    turns = (
        Turn(tool_calls=calls, results=results, pause_s=0.1, context=Context((1, 2), 16, 20, 10)),
        Turn(context=Context((1, 2, 3), 16, 40, 5), pause_s=0.1),
        Turn(context=Context((1, 9), 16, 32, 5)),
    )
    recorded = ContextJob(Job("job-0", (), turns=turns), ContextWriter(range(100, 900)))
    failed, made = run(server, tmp_path, [recorded])
    assert failed == 0
    assert [body["prompt"] for body in server.bodies] == [recorded.prompt(turn) for turn in range(3)]
    assert [body["vllm_xargs"][REPLY_ARGUMENT] for body in server.bodies] == [recorded.reply(turn) for turn in range(3)]
    assert [(body["session_id"], body["max_tokens"]) for body in server.bodies] == [
        ("job-0", 10),
        ("job-0", 5),
        ("job-0", 5),
    ]
    first, second, third = made.events.requests
    assert [request.diverged_at for request in (first, second, third)] == [None] * 3
    assert [request.cached_tokens for request in (first, second, third)] == [0, 16, 16]
    assert [request.reusable_tokens for request in (first, second, third)] == [0, 16, 16]
    assert 0.2 <= second.sent_s - first.finished_s < 0.3
    assert 0.1 <= third.sent_s - second.finished_s < 0.2
    assert sorted(call.turn for call in made.events.tool_calls) == [0, 0]


def test_a_job_without_text_that_the_server_refuses_has_failed(server: FakeServer, tmp_path: Path) -> None:
    server.refused_jobs.add("job-0")
    turns = (Turn(context=Context((1,), 16, 16, 3)),)
    failed, made = run(server, tmp_path, [ContextJob(Job("job-0", (), turns=turns), ContextWriter(range(100, 900)))])
    assert failed == 1
    assert made.status_of("job-0").error == "HTTP 500: the engine is on fire"


def test_lanes_take_sessions_until_the_time_is_over(server: FakeServer, tmp_path: Path) -> None:
    sessions = make_short_sessions(tmp_path / "r.jsonl", (8, 9, 10))
    settings = JobSettings(workload=f"recording:{sessions}", concurrency=2, duration_s=0.5, warm_up=1)
    loop = load_run(settings, CharacterTokenizer()).loop
    assert loop is not None
    lanes = loop.begin()
    made = Run(server, tmp_path, 0)
    assert asyncio.run(made.runner.run_lanes(lanes)) == 0
    jobs = made.events.jobs
    interrupted = [job.error for job in jobs if job.status == "interrupted"]
    # A lane may be between two sessions.
    assert interrupted in ([MEASURED], [MEASURED] * 2)
    assert sum(job.status == "finished" for job in jobs) >= 2
    assert lanes.window_s is not None
    assert max(job.finished_s for job in jobs) >= lanes.window_s[1] >= 0.5


def test_a_lane_whose_session_fails_takes_no_other(server: FakeServer, tmp_path: Path) -> None:
    sessions = write_sessions(tmp_path / "r.jsonl", [make_session(1, (1,), (1, 2))])
    settings = JobSettings(workload=f"recording:{sessions}", concurrency=2, duration_s=60.0)
    loop = load_run(settings, CharacterTokenizer()).loop
    assert loop is not None
    server.refused_jobs = {"0-trace_0001", "0-trace_0001-again-1"}
    made = Run(server, tmp_path, 0)
    assert asyncio.run(made.runner.run_lanes(loop.begin())) == 2


def test_lanes_that_all_wait_go_on_soon(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentcache.replay.runner.IDLE_CAP_S", 0.02)
    sessions = make_short_sessions(tmp_path / "r.jsonl", (12, 12, 12), wait_s=200.0)
    settings = JobSettings(workload=f"recording:{sessions}", concurrency=2, duration_s=0.5, warm_up=1)
    loop = load_run(settings, CharacterTokenizer()).loop
    assert loop is not None
    made = Run(server, tmp_path, 0)
    asyncio.run(asyncio.wait_for(made.runner.run_lanes(loop.begin()), 30))
    assert len(made.events.requests) > 6
    assert max(call.finished_s - call.started_s for call in made.events.tool_calls) < 10
