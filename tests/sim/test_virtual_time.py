from __future__ import annotations

from pathlib import Path

import pytest
from made_simulation import ConstantGpu, make_turn, record, run_jobs
from vllm.v1.core.sched.output import SchedulerOutput

from agentcache.engine.scheduler import AgentScheduler
from agentcache.errors import IntegrityError
from agentcache.jobs.context_job import ContextJob, ContextWriter
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.sim import runner
from agentcache.sim.clock import Timeline, VirtualClock
from tool_runtime.agent.job import Context, Job, ToolCall, ToolResult, Turn


def test_clock_does_not_go_back() -> None:
    clock = VirtualClock()
    clock.advance_to(2.5)
    clock.advance_to(2.5)
    assert clock.now() == 2.5
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance_to(2.0)


def test_timeline_runs_events_of_one_time_in_order_of_planning() -> None:
    clock = VirtualClock()
    timeline = Timeline(clock)
    done: list[tuple[str, float]] = []

    def plan(name: str, time_s: float) -> None:
        timeline.plan(time_s, lambda: done.append((name, clock.now())))

    plan("late", 3.0)
    timeline.plan(1.0, lambda: plan("planned meanwhile", 1.0))
    plan("first", 1.0)
    assert timeline.advance()
    assert done == [("first", 1.0), ("planned meanwhile", 1.0)]
    assert timeline.advance()
    assert done[2:] == [("late", 3.0)]
    assert not timeline.advance()


def test_two_jobs_by_hand(tiny_model_path: str, tmp_path: Path) -> None:
    """A step takes 1 s and gives every request in it one token, so a reply of n tokens takes n steps."""
    tokenizer = LocalTokenizer(tiny_model_path)
    tools = make_turn("I look twice.", 3.25, 1.0)
    one = record(tokenizer, "one", 0.0, tools, make_turn("Here."))
    other = record(tokenizer, "other", 0.5, make_turn("It is a long way to go. " * 14))
    asks, answers = map(len, one.replies)
    tells = len(other.replies[0])
    assert tells > asks + answers + 5, "the other job must run all the time"
    run = run_jobs(tiny_model_path, [one, other], tmp_path, ConstantGpu())

    # The second turn is sent a quarter of a second into a step and waits for its end.
    sent = asks + 3.25
    times = {(r.job, r.turn): (r.sent_s, r.first_token_s, r.finished_s) for r in run.requests}
    assert times == {
        ("one", 0): (0.0, 1.0, asks),
        ("one", 1): (sent, sent + 1.75, sent + 0.75 + answers),
        ("other", 0): (0.5, 2.0, 1.0 + tells),
    }
    phases = {(r.job, r.turn): (r.queue_s, r.prefill_s, r.decode_s) for r in run.requests}
    assert phases == {
        ("one", 0): (0.0, 1.0, asks - 1),
        ("one", 1): (0.75, 1.0, answers - 1),
        ("other", 0): (0.5, 1.0, tells - 1),
    }
    assert [(call.started_s, call.finished_s) for call in run.tool_calls] == [(asks, asks + 1.0), (asks, sent)]
    assert [(job.job, job.started_s, job.finished_s, job.turns, job.status) for job in run.jobs] == [
        ("one", 0.0, sent + 0.75 + answers, 2, "finished"),
        ("other", 0.5, 1.0 + tells, 1, "finished"),
    ]


def test_time_stands_still_for_nobody(tiny_model_path: str, tmp_path: Path) -> None:
    """Between jobs the engine rests: the steps of the second begin when it arrives, not on the first one's grid."""
    tokenizer = LocalTokenizer(tiny_model_path)
    jobs = [record(tokenizer, name, arrival_s, make_turn("Yes.")) for name, arrival_s in (("a", 0.0), ("b", 1e6 + 0.5))]
    gpu = ConstantGpu()
    run = run_jobs(tiny_model_path, jobs, tmp_path, gpu)
    assert [request.queue_s for request in run.requests] == [0.0, 0.0]
    assert run.jobs[1].finished_s == 1e6 + 0.5 + len(jobs[1].replies[0])
    # One forward pass per token of the replies; the prompt's pass is also asked for without its prefills.
    assert len([batch for batch in gpu.batches if batch]) == sum(len(job.replies[0]) for job in jobs)


def test_reusable_and_cached_tokens_agree_in_a_large_cache(tiny_model_path: str, tmp_path: Path) -> None:
    tokenizer = LocalTokenizer(tiny_model_path)
    job = record(tokenizer, "one", 0.0, make_turn("I look. " * 20, 2.0), make_turn("I look. " * 9, 1.0), make_turn("."))
    first, *rest = run_jobs(tiny_model_path, [job], tmp_path, ConstantGpu()).requests
    assert (first.cached_tokens, first.reusable_tokens) == (0, 0)
    assert [request.diverged_at for request in rest] == [None, None]
    assert all(request.cached_tokens == request.reusable_tokens > 100 for request in rest)


def test_scheduler_that_runs_nothing_is_a_bug_not_endless_wait(
    tiny_model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentScheduler, "schedule", lambda _scheduler: SchedulerOutput.make_empty())
    monkeypatch.setattr(runner, "PATIENCE_S", 2.0)
    job = record(LocalTokenizer(tiny_model_path), "one", 100.0, make_turn("Yes."))
    with pytest.raises(IntegrityError, match="policy lru: requests wait, and none has run for 2 s"):
        run_jobs(tiny_model_path, [job], tmp_path, ConstantGpu())


class Told:
    """A future that keeps what it is told."""

    def __init__(self) -> None:
        self.due_at: list[tuple[str, int, float]] = []
        self.over: list[str] = []

    def due(self, job_id: str, turn: int, time_s: float) -> None:
        assert job_id not in self.over
        self.due_at.append((job_id, turn, time_s))

    def ended(self, job_id: str) -> None:
        self.over.append(job_id)


def test_pauses_follow_the_calls_and_the_future_is_told_at_once(tiny_model_path: str, tmp_path: Path) -> None:
    """Every reply has 2 tokens, so every request takes 2 s."""
    calls, results = (ToolCall("tool", "{}"),) * 2, (ToolResult("", 4.0), ToolResult("", 3.0))
    turns = (
        Turn(tool_calls=calls, results=results, pause_s=10.0, context=Context((1, 2), 16, 20, 2)),
        Turn(pause_s=5.0, context=Context((1, 2, 3), 16, 40, 2)),
        Turn(context=Context((1,), 16, 16, 2)),
        Turn(context=Context((1,), 16, 9, 2)),
    )
    writer, told = ContextWriter(range(100, 900)), Told()
    jobs = [ContextJob(Job(name, (), turns=turns, arrival_s=at), writer) for name, at in (("a", 0.0), ("b", 100.5))]
    run = run_jobs(tiny_model_path, jobs, tmp_path, ConstantGpu(), future=told)
    sent = [0.0, 16.0, 23.0, 25.0]
    assert [request.sent_s for request in run.requests] == [*sent, *(100.5 + at for at in sent)]
    assert [(call.turn, call.finished_s) for call in run.tool_calls[:2]] == [(0, 5.0), (0, 6.0)]
    assert told.due_at[:2] == [("a", 0, 0.0), ("b", 0, 100.5)]
    assert told.due_at[2:5] == [("a", turn, at) for turn, at in enumerate(sent)][1:]
    assert told.over == ["a", "b"]
    # Block 1 stays in the cache; the reply of the first turn is the beginning of what comes in the second.
    assert [request.cached_tokens for request in run.requests] == [0, 16, 0, 0, 16, 32, 0, 0]
    assert [request.diverged_at for request in run.requests] == [None] * 8


def test_what_is_said_after_a_pause_is_in_the_next_prompt(tiny_model_path: str, tmp_path: Path) -> None:
    said = ({"role": "user", "content": "And then?"},)
    tokenizer = LocalTokenizer(tiny_model_path)
    job = record(tokenizer, "one", 0.0, Turn("Yes.", pause_s=7.0, said=said), make_turn("No."))
    first, second = run_jobs(tiny_model_path, [job], tmp_path, ConstantGpu()).requests
    assert second.sent_s == first.finished_s + 7.0
    chat = [*job.job.messages, {"role": "assistant", "content": "Yes."}, *said]
    assert second.prompt_tokens == len(tokenizer.render(chat, job.job.tools, for_reply=True))
    assert second.diverged_at is None
