"""Runs the jobs of one policy as discrete events: arrivals, steps of the engine, tools that end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from agentcache.errors import IntegrityError
from agentcache.jobs.families import Family, take_agent
from agentcache.jobs.lanes import IDLE_CAP_S, Lanes
from agentcache.jobs.recorded_job import PromptWriter, RecordedJob
from agentcache.report.events import MEASURED, EventSink
from agentcache.run.display import ReplayDisplay
from agentcache.run.recorder import JobRecorder
from agentcache.sim.clock import Action, Timeline
from agentcache.sim.delays import FrontEnd
from agentcache.sim.engine import RequestTimes, SimulatedEngine, StepOutcome
from agentcache.sim.routing import Choice, Routing
from tool_runtime.agent.agent_loop import JobOutcome
from tool_runtime.agent.job import ToolCall, ToolResult
from tool_runtime.agent.model_client import RequestOutcome
from tool_runtime.agent.recorded_tools import ExecutedCall
from tool_runtime.agent.reply import Reply

# No policy may hold back all requests for longer, while nothing else happens: they wait for pins only while others run,
# so for copies alone. An idle engine looks a thousand times in each second of it.
PATIENCE_S = 60.0


class Future(Protocol):
    """Receives what comes as soon as it is certain."""

    def due(self, job_id: str, turn: int, time_s: float) -> None:
        """Note that the turns before `turn` are over, and that one will be sent, or is, at `time_s`."""

    def ended(self, job_id: str) -> None:
        """Note that the last turn of the job is over."""


@dataclass(slots=True)
class _JobRun:
    """An agent of a job under way. Turn `turn` was sent with `prompt`, or will be when the pause is over.

    That begins when no call is open, and calls when no sub-agent is `awaited`.
    """

    recorded: RecordedJob
    recorder: JobRecorder
    prompts: Iterator[list[int]]
    started_s: float
    family: Family
    parent: _JobRun | None
    turn: int = 0
    sent_s: float = 0.0
    prompt: list[int] = field(default_factory=list)
    reply: list[int] = field(default_factory=list)
    choice: Choice | None = None
    open_calls: int = 0
    awaited: int = 0

    @property
    def request_id(self) -> str:
        return f"{self.recorded.job.name}/{self.turn}"


class SimulationRunner:
    """One policy's run: what a replay does, with the same events, and with one clock for clients and server."""

    def __init__(
        self,
        policy: str,
        engines: Sequence[SimulatedEngine],
        *,
        prompts: PromptWriter,
        writer: EventSink,
        display: ReplayDisplay,
        future: Future | None = None,
        front_end: FrontEnd | None = None,
        routing: Routing | None = None,
        checks_tokens: bool = True,
    ) -> None:
        """Run on `engines`, which share a clock. `routing` None sends all to the first.

        Each engine has an API server of its own, as vLLM starts them. `checks_tokens` False saves time: events
        then do not tell what of a prompt was reusable.
        """
        self._policy = policy
        self._engines = engines
        self._routing = routing or Routing()
        self._clock = engines[0].clock
        self._prompts = prompts
        self._writer = writer
        self._display = display
        self._future = future
        self._front_end = front_end or FrontEnd()
        self._checks_tokens = checks_tokens
        self._timeline = Timeline(self._clock)
        # Jobs under way by their id, and those of them that wait for a reply by the request's.
        self._running: dict[str, _JobRun] = {}
        self._asking: dict[str, _JobRun] = {}
        self._idle_since_s: float | None = None
        self._lanes: Lanes | None = None

    def run(self, jobs: Sequence[RecordedJob]) -> None:
        """Run to the end of the last job. After KeyboardInterrupt the running jobs are recorded as interrupted."""
        for recorded in jobs:
            self._timeline.plan(recorded.job.arrival_s, partial(self._start_job, recorded))
            self._tell_due(recorded, 0, recorded.job.arrival_s)
        with self._recording_interrupted():
            while self._timeline.advance():
                self._begin_steps()

    def run_lanes(self, lanes: Lanes) -> None:
        """Run a closed loop until it has been measured. The sessions under way are recorded as interrupted."""
        self._lanes = lanes
        for recorded in lanes.start():
            self._timeline.plan(0.0, partial(self._start_job, recorded))
        with self._recording_interrupted():
            while not lanes.is_measured(self._timeline.next_s) and self._timeline.advance():
                self._begin_steps()
                if not self._asking:
                    self._timeline.bring_forward(self._clock.now() + IDLE_CAP_S)
        if lanes.window_s is not None:
            self._clock.advance_to(lanes.window_s[1])
        for run in self._running.values():
            run.recorder.job_interrupted(self._clock.now(), MEASURED)

    def _begin_steps(self) -> None:
        for engine in self._engines:
            while engine.can_begin:
                self._timeline.plan(engine.begin_step(), partial(self._end_step, engine))

    @contextmanager
    def _recording_interrupted(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            for run in self._running.values():
                run.recorder.job_interrupted(self._clock.now())
            raise

    def _start_job(self, recorded: RecordedJob) -> None:
        run = self._make_run(recorded, Family(recorded.job), None)
        self._running[recorded.job.id] = run
        self._display.job_started()
        self._send(run)

    def _make_run(self, recorded: RecordedJob, family: Family, parent: _JobRun | None) -> _JobRun:
        recorder = JobRecorder(self._policy, recorded, self._writer, self._engines[0].block_size, self._lanes)
        return _JobRun(recorded, recorder, self._prompts.write(recorded), self._clock.now(), family, parent)

    def _begin_agents(self, run: _JobRun) -> None:
        """Begin the sub-agents that were recorded to begin behind this turn."""
        for job in run.family.list_beginning(run.recorded.job.thread, run.turn):
            assert job.start is not None
            run.awaited += job.start.is_awaited
            recorded, begin_s = take_agent(run.recorded, job), self._clock.now() + job.start.delay_s
            self._tell_due(recorded, 0, begin_s)
            self._timeline.plan(begin_s, partial(self._start_agent, recorded, run))

    def _start_agent(self, recorded: RecordedJob, parent: _JobRun) -> None:
        self._send(self._make_run(recorded, parent.family, parent))

    def _send(self, run: _JobRun) -> None:
        run.prompt, run.reply = next(run.prompts), run.recorded.reply(run.turn)
        run.sent_s = self._clock.now()
        delay_s = self._front_end.request_delay_s(len(run.prompt), self._count_beside())
        self._after(delay_s, partial(self._ask, run))

    def _ask(self, run: _JobRun) -> None:
        self._asking[run.request_id] = run
        job = run.recorded.job
        calls = job.turns[run.turn].tool_calls
        choice = self._routing.choose(run.request_id, run.prompt, job.id)
        run.choice = choice if len(self._engines) > 1 else None
        parent = None if job.start is None else job.start.parent
        self._engines[choice.engine].add(
            run.request_id,
            run.prompt,
            run.reply,
            session_id=job.id,
            calls=calls,
            agent=job.thread,
            tenant=job.tenant,
            parent=parent,
        )

    def _end_step(self, engine: SimulatedEngine) -> None:
        outcome = engine.end_step()
        self._check_patience(outcome)
        for times in outcome.first_tokens:
            self._routing.got_token(times.request_id)
        for times in outcome.finished:
            run = self._asking.pop(times.request_id)
            answered = not run.recorded.job.turns[run.turn].tool_calls
            self._routing.finished(times.request_id, run.reply, answered=answered)
            self._after(self._front_end.reply_delay_s(self._count_beside()), partial(self._end_request, run, times))

    def _count_beside(self) -> int:
        """Count the requests that the same API server has in the engines."""
        return len(self._asking) // len(self._engines)

    def _after(self, delay_s: float, action: Action) -> None:
        if delay_s:
            self._timeline.plan(self._clock.now() + delay_s, action)
        else:
            action()

    def _end_request(self, run: _JobRun, times: RequestTimes) -> None:
        outcome = _request_outcome(run, times, self._clock.now(), with_tokens=self._checks_tokens)
        run.recorder.request_ended(outcome, *(run.choice or ()))
        self._begin_agents(run)
        if run.turn == len(run.recorded.job.turns) - 1:
            self._end_agent(run)
            return
        run.turn += 1
        run.prompt, run.reply = [], []
        if not run.awaited:
            self._go_on(run)

    def _go_on(self, run: _JobRun) -> None:
        """Begin what was recorded between the last turn, or the end of the sub-agents it waited for, and this one."""
        turn = run.recorded.job.turns[run.turn - 1]
        run.open_calls = len(turn.tool_calls)
        for call, result in zip(turn.tool_calls, turn.results, strict=True):
            self._start_call(run, call, result)
        calls_end_s = self._clock.now() + max((result.duration_s for result in turn.results), default=0.0)
        self._tell_due(run.recorded, run.turn, calls_end_s + turn.pause_s)
        if not turn.tool_calls:
            self._pause(run)

    def _start_call(self, run: _JobRun, call: ToolCall, result: ToolResult) -> None:
        started_s = self._clock.now()

        def end() -> None:
            executed = ExecutedCall(call, result, started_s, self._clock.now())
            run.recorder.tool_call_ended(run.recorded.job.id, run.turn - 1, executed)
            run.open_calls -= 1
            if not run.open_calls:
                self._pause(run)

        self._timeline.plan(started_s + result.duration_s, end)

    def _pause(self, run: _JobRun) -> None:
        pause_s = run.recorded.job.turns[run.turn - 1].pause_s
        if pause_s > 0:
            self._timeline.plan(self._clock.now() + pause_s, partial(self._send, run))
        else:
            self._send(run)

    def _end_agent(self, run: _JobRun) -> None:
        job = run.recorded.job
        run.family.left -= 1
        if not run.family.left:
            self._routing.ended(job.id)
            for engine in self._engines:
                engine.end_session(job.id)
        if self._future is not None:
            self._future.ended(job.name)
        if run.parent is None:
            self._end_job(run)
        elif job.start is not None and job.start.is_awaited:
            run.parent.awaited -= 1
            if not run.parent.awaited:
                self._go_on(run.parent)
        if self._lanes is not None and not run.family.left:
            self._start_job(self._lanes.follow())

    def _end_job(self, run: _JobRun) -> None:
        job = run.recorded.job
        del self._running[job.id]
        outcome = JobOutcome(
            job_id=job.id,
            started_s=run.started_s,
            finished_s=self._clock.now(),
            turns=job.turns,
            status="finished",
        )
        self._display.job_ended(run.recorder.job_ended(outcome))

    def _tell_due(self, recorded: RecordedJob, turn: int, time_s: float) -> None:
        if self._future is not None:
            self._future.due(recorded.job.name, turn, time_s)

    def _check_patience(self, outcome: StepOutcome) -> None:
        if outcome.scheduled_tokens:
            self._idle_since_s = None
            return
        if self._idle_since_s is None:
            self._idle_since_s = outcome.started_s
        if (waited_s := outcome.ended_s - self._idle_since_s) > PATIENCE_S:
            raise IntegrityError(f"policy {self._policy}: requests wait, and none has run for {waited_s:.0f} s")


def _request_outcome(run: _JobRun, times: RequestTimes, now_s: float, *, with_tokens: bool) -> RequestOutcome:
    """Return what a client measures that has the whole reply now."""
    assert times.scheduled_s is not None
    assert times.first_token_s is not None
    assert times.finished_s is not None
    return RequestOutcome(
        job_id=run.recorded.job.id,
        turn=run.turn,
        sent_s=run.sent_s,
        # Every token takes as long to the client as the last.
        first_token_s=times.first_token_s + (now_s - times.finished_s),
        finished_s=now_s,
        reply=Reply(
            prompt_tokens=len(run.prompt),
            output_tokens=len(run.reply),
            cached_tokens=times.cached_tokens,
            queue_s=times.scheduled_s - times.added_s,
            prefill_s=times.first_token_s - times.scheduled_s,
            decode_s=times.finished_s - times.first_token_s,
            prompt_token_ids=tuple(run.prompt) if with_tokens else None,
            output_token_ids=tuple(run.reply) if with_tokens else None,
        ),
    )
