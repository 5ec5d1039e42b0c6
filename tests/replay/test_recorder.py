from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from made_job import make_job, make_turn

from agentcache.jobs.context_job import ContextJob, ContextWriter
from agentcache.jobs.recorded_job import TextJob
from agentcache.report.events import Event, EventWriter, JobEvent, RequestEvent, ToolCallEvent, read_events
from agentcache.run.recorder import JobRecorder
from tool_runtime.agent.agent_loop import JobOutcome
from tool_runtime.agent.job import Context, Job, ToolCall, ToolResult, Turn
from tool_runtime.agent.model_client import RequestOutcome
from tool_runtime.agent.recorded_tools import ExecutedCall
from tool_runtime.agent.reply import Reply

# Ten tokens a reply; the prompts of the tests below are made of them.
REPLIES = [list(range(100 + 10 * turn, 110 + 10 * turn)) for turn in range(3)]


class Recording:
    """A recorder of a job of three turns, two with a call, and what it wrote."""

    def __init__(self, folder: Path, block_size: int | None = 16) -> None:
        job = make_job("job-0", make_turn("a"), make_turn("b"), make_turn())
        self._folder = folder
        self._turns: list[Turn] = []
        self.recorder = JobRecorder("lru", TextJob(job, tuple(REPLIES), 0), EventWriter(folder), block_size)

    def ask(
        self, turn: int, prompt: Sequence[int] | None, reply: Sequence[int] | None = None, *, calls: bool = True
    ) -> None:
        """A request that was answered with `reply`, as recorded unless another is given, and its recorded calls."""
        self.recorder.request_ended(make_outcome(turn, prompt, REPLIES[turn] if reply is None else reply))
        recorded = self.recorder.recorded.job.turns[turn]
        self._turns.append(recorded if calls else Turn(recorded.content))
        for call, result in zip(recorded.tool_calls, recorded.results, strict=True) if calls else ():
            self.recorder.tool_call_ended("job-0", turn, ExecutedCall(call, result, 2.0 + turn, 2.5 + turn))

    def end(self, error: str | None = None) -> JobEvent:
        outcome = JobOutcome(
            job_id="job-0",
            started_s=1.0,
            finished_s=9.0,
            turns=tuple(self._turns),
            status="failed" if error else "finished",
            error=error,
        )
        return self.recorder.job_ended(outcome)

    @property
    def events(self) -> list[Event]:
        return list(read_events(self._folder))

    @property
    def requests(self) -> list[RequestEvent]:
        return [event for event in self.events if isinstance(event, RequestEvent)]

    @property
    def jobs(self) -> list[JobEvent]:
        return [event for event in self.events if isinstance(event, JobEvent)]


def make_outcome(
    turn: int, prompt: Sequence[int] | None, reply: Sequence[int] | None, **changes: object
) -> RequestOutcome:
    told = Reply(
        prompt_tokens=0 if prompt is None else len(prompt),
        output_tokens=0 if reply is None else len(reply),
        cached_tokens=32,
        queue_s=0.01,
        prefill_s=0.02,
        decode_s=0.03,
        prompt_token_ids=None if prompt is None else tuple(prompt),
        output_token_ids=None if reply is None else tuple(reply),
    )
    times = {"sent_s": 1.0 + turn, "first_token_s": 1.25 + turn, "finished_s": 1.75 + turn}
    return RequestOutcome(**{"job_id": "job-0", "turn": turn, "reply": told, **times, **changes})  # type: ignore[arg-type]


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


def test_a_request_is_written_as_it_was_measured(recording: Recording) -> None:
    recording.recorder.request_ended(make_outcome(0, range(40), REPLIES[0], retries=2))
    assert recording.events == [
        RequestEvent(
            policy="lru",
            job="job-0",
            turn=0,
            sent_s=1.0,
            first_token_s=1.25,
            finished_s=1.75,
            queue_s=0.01,
            prefill_s=0.02,
            decode_s=0.03,
            prompt_tokens=40,
            output_tokens=10,
            cached_tokens=32,
            retries=2,
        )
    ]


def test_a_tool_call_is_written_as_it_ended(recording: Recording) -> None:
    executed = ExecutedCall(ToolCall("look", "{}", "c1"), ToolResult("Error: none", 0.5, "none"), 2.0, 2.5)
    recording.recorder.tool_call_ended("job-0", 1, executed)
    assert recording.events == [
        ToolCallEvent(policy="lru", job="job-0", turn=1, tool="look", started_s=2.0, finished_s=2.5, error="none")
    ]


def test_reusable_tokens_of_a_job_that_goes_on_as_recorded(recording: Recording) -> None:
    # Each prompt is the last one, its reply, and a tool result of 7 tokens.
    first = list(range(40))
    second = [*first, *REPLIES[0], *range(7)]
    third = [*second, *REPLIES[1], *range(7)]
    for turn, prompt in enumerate((first, second, third)):
        recording.ask(turn, prompt)
    # Known 40 + 10 and 57 + 10 tokens; the last of each reply has no KV: 49 and 66, in blocks of 16.
    assert [request.reusable_tokens for request in recording.requests] == [0, 48, 64]
    assert [request.diverged_at for request in recording.requests] == [None, None, None]
    assert recording.end().status == "finished"


@pytest.mark.parametrize(("prompt", "reusable"), [(38, 32), (39, 48)], ids=["47 tokens with KV", "48 tokens with KV"])
def test_the_last_token_of_a_reply_is_in_no_block(recording: Recording, prompt: int, reusable: int) -> None:
    recording.ask(0, range(prompt))
    recording.ask(1, [*range(prompt), *REPLIES[0], *range(20)])
    assert recording.requests[1].reusable_tokens == reusable


def test_without_a_block_size_tokens_are_counted(tmp_path: Path) -> None:
    recording = Recording(tmp_path, block_size=None)
    recording.ask(0, range(40))
    recording.ask(1, [*range(40), *REPLIES[0], 7])
    assert recording.requests[1].reusable_tokens == 49


def test_the_last_token_of_a_prompt_is_always_computed(recording: Recording) -> None:
    recording.ask(0, range(40))
    recording.ask(1, range(32))
    assert (recording.requests[1].diverged_at, recording.requests[1].reusable_tokens) == (32, 16)


@pytest.mark.parametrize(("at", "reusable"), [(0, 0), (15, 0), (16, 16), (33, 32), (49, 48)])
def test_only_what_lies_before_the_divergence_is_reusable(recording: Recording, at: int, reusable: int) -> None:
    recording.ask(0, range(40))
    known = [*range(40), *REPLIES[0]]
    recording.ask(1, [*known[:at], 999, *known[at + 1 :], 7, 7, 7])
    assert (recording.requests[1].diverged_at, recording.requests[1].reusable_tokens) == (at, reusable)


def test_a_diverged_prompt_is_what_the_next_one_is_held_against(recording: Recording) -> None:
    recording.ask(0, range(40))
    recording.ask(1, range(500, 540))
    recording.ask(2, [*range(500, 540), *REPLIES[1], 7])
    assert [request.diverged_at for request in recording.requests] == [None, 0, None]
    assert recording.requests[2].reusable_tokens == 48


def test_prompts_that_the_server_hides_are_not_judged(recording: Recording) -> None:
    for turn in range(3):
        recording.ask(turn, None)
    assert [(request.reusable_tokens, request.diverged_at) for request in recording.requests] == [(0, None)] * 3
    assert recording.end().status == "finished"


@pytest.mark.parametrize(
    ("given", "at"),
    [([*range(110, 113), 0, *range(114, 120)], 3), (range(110, 115), 5), (range(110, 121), 10), ([], 0)],
    ids=["another token", "too short", "too long", "nothing"],
)
def test_a_reply_that_leaves_the_recording_fails_its_job(recording: Recording, given: Sequence[int], at: int) -> None:
    recording.ask(0, range(40))
    recording.ask(1, range(60), list(given))
    recording.ask(2, range(80))
    event = recording.end()
    assert (event.status, event.turns) == ("failed", 3)
    assert event.error == f"turn 1: the reply left the recording at output token {at}"
    assert recording.jobs == [event]


def test_the_first_departure_is_named(recording: Recording) -> None:
    for turn in range(3):
        recording.ask(turn, range(40), [turn])
    assert recording.end().error == "turn 0: the reply left the recording at output token 0"


def test_a_job_that_ends_before_its_recording_has_failed(recording: Recording) -> None:
    recording.ask(0, range(40))
    recording.ask(1, range(60), calls=False)
    event = recording.end()
    assert (event.status, event.turns) == ("failed", 2)
    assert event.error == "turn 1: the server's tool parser found the calls [], the recording has ['look']"


def test_a_job_whose_request_failed_says_why(recording: Recording) -> None:
    recording.ask(0, range(40))
    failed = make_outcome(1, None, None, first_token_s=None, retries=2, error="connection lost")
    recording.recorder.request_ended(failed)
    event = recording.end("connection lost")
    assert (event.status, event.turns, event.error) == ("failed", 1, "connection lost")
    assert (event.started_s, event.finished_s) == (1.0, 9.0)
    request = recording.requests[1]
    assert (request.error, request.retries, request.first_token_s) == ("connection lost", 2, None)


def test_an_interrupted_job_is_one_line_from_its_first_request(recording: Recording) -> None:
    recording.ask(0, range(40))
    recording.ask(1, [*range(40), *REPLIES[0], 7])
    recording.recorder.job_interrupted(8.0)
    assert recording.jobs == [
        JobEvent(
            policy="lru",
            job="job-0",
            started_s=1.0,
            finished_s=8.0,
            turns=2,
            status="interrupted",
            error="the run was interrupted",
        )
    ]


def test_a_job_that_had_not_begun_leaves_nothing(recording: Recording) -> None:
    recording.recorder.job_interrupted(8.0)
    assert recording.events == []


def record_contexts(*contexts: Context) -> ContextJob:
    job = Job("job-0", (), turns=tuple(Turn(context=context) for context in contexts))
    return ContextJob(job, ContextWriter(range(1000, 4000)))


def serve(recorded: ContextJob, folder: Path) -> tuple[list[RequestEvent], JobEvent]:
    """Every turn as recorded."""
    recorder = JobRecorder("lru", recorded, EventWriter(folder), 16)
    for turn in range(len(recorded.job.turns)):
        recorder.request_ended(make_outcome(turn, recorded.prompt(turn), recorded.reply(turn)))
    outcome = JobOutcome(job_id="job-0", started_s=1.0, finished_s=9.0, turns=recorded.job.turns, status="finished")
    end = recorder.job_ended(outcome)
    return [event for event in read_events(folder) if isinstance(event, RequestEvent)], end


def test_a_context_cut_or_rewritten_as_recorded_has_not_diverged(tmp_path: Path) -> None:
    recorded = record_contexts(
        Context((1, 2, 3), 16, 40, 10),
        Context((1, 2, 3, 4), 16, 60, 10),  # goes on: the reply is within block 3 and 4
        Context((1, 2, 9, 10, 11), 16, 80, 10),  # rewritten from token 32 on
        Context((1, 2), 16, 20, 10),  # cut
    )
    requests, end = serve(recorded, tmp_path)
    assert end.status == "finished"
    assert [request.diverged_at for request in requests] == [None] * 4
    # 40 + 10 - 1 tokens had KV; then the blocks before the rewrite; then all of the prompt but its last token.
    assert [request.reusable_tokens for request in requests] == [0, 48, 32, 16]


def test_a_prompt_that_is_not_the_recorded_one_has_diverged(tmp_path: Path) -> None:
    recorded = record_contexts(Context((1, 2, 3), 16, 40, 10))
    recorder = JobRecorder("lru", recorded, EventWriter(tmp_path), 16)
    prompt = recorded.prompt(0)
    recorder.request_ended(make_outcome(0, [7, *prompt], recorded.reply(0)))
    (request,) = read_events(tmp_path)
    assert isinstance(request, RequestEvent)
    assert request.diverged_at == 0
