"""Writes a job's events as they happen, and checks that the server gave the recorded replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcache.jobs.context_job import ContextJob
from agentcache.jobs.lanes import Lanes
from agentcache.jobs.recorded_job import RecordedJob, find_divergence
from agentcache.report.events import EventSink, JobEvent, RequestEvent, ToolCallEvent
from tool_runtime.agent.agent_loop import JobOutcome
from tool_runtime.agent.model_client import RequestOutcome
from tool_runtime.agent.recorded_tools import ExecutedCall


@dataclass(slots=True)
class JobRecorder:
    """Observes the loop of one agent of a job under one policy. `block_size` None counts tokens instead of blocks.

    `lanes` are those of a closed loop, which follow what ends.
    """

    policy: str
    recorded: RecordedJob
    writer: EventSink
    block_size: int | None
    lanes: Lanes | None = None
    # Prompt and output of the last turn: what the next prompt must begin with.
    _known: tuple[int, ...] = ()
    _turns: int = 0
    _started_s: float | None = None
    _problem: str | None = None

    def request_ended(self, outcome: RequestOutcome, engine: int | None = None, left_tokens: int | None = None) -> None:
        """Write the request and whether its prompt extends what was known. The others are told as they are."""
        self._started_s = outcome.sent_s if self._started_s is None else self._started_s
        reply = outcome.reply
        prompt = reply.prompt_token_ids or ()
        reusable = self._count_reusable(prompt)
        self.writer.write(
            RequestEvent(
                policy=self.policy,
                job=outcome.job_id,
                thread=self.recorded.job.thread,
                turn=outcome.turn,
                sent_s=outcome.sent_s,
                first_token_s=outcome.first_token_s,
                finished_s=outcome.finished_s,
                queue_s=reply.queue_s,
                prefill_s=reply.prefill_s,
                decode_s=reply.decode_s,
                prompt_tokens=reply.prompt_tokens or 0,
                output_tokens=reply.output_tokens or 0,
                cached_tokens=reply.cached_tokens,
                reusable_tokens=reusable,
                engine=engine,
                left_tokens=left_tokens,
                infinite_tokens=None if outcome.error else self._count_infinite(outcome.turn, reusable),
                retries=outcome.retries,
                diverged_at=self._find_divergence(outcome.turn, prompt) if prompt else None,
                error=outcome.error,
            )
        )
        if outcome.error is None:
            self._turns += 1
            self._check_reply(outcome)
            self._known = (*prompt, *(reply.output_token_ids or ()))
        if self.lanes is not None:
            self.lanes.request_ended(outcome.job_id, outcome.finished_s)

    def tool_call_ended(self, job_id: str, turn: int, executed: ExecutedCall) -> None:
        """Write the tool call."""
        self.writer.write(
            ToolCallEvent(
                policy=self.policy,
                job=job_id,
                thread=self.recorded.job.thread,
                turn=turn,
                tool=executed.call.name,
                started_s=executed.started_s,
                finished_s=executed.finished_s,
                error=executed.result.error,
            )
        )

    def job_ended(self, outcome: JobOutcome) -> JobEvent:
        """Record the end of a job. One that left the recording has failed, even if it came to an end."""
        error = self.find_problem(outcome)
        event = JobEvent(
            policy=self.policy,
            job=outcome.job_id,
            tenant=self.recorded.job.tenant,
            started_s=outcome.started_s,
            finished_s=outcome.finished_s,
            turns=self._turns,
            status="failed" if error else "finished",
            error=error,
        )
        self.writer.write(event)
        if self.lanes is not None:
            self.lanes.session_ended(outcome.job_id, outcome.finished_s)
        return event

    def find_problem(self, outcome: JobOutcome) -> str | None:
        """Find what went wrong."""
        return outcome.error or self._problem or self._find_lost_call(outcome)

    def agent_failed(self, problem: str) -> None:
        """Have the job fail, as a sub-agent of it has."""
        self._problem = self._problem or problem

    def job_interrupted(self, now_s: float, cause: str = "the run was interrupted") -> None:
        """Record the interruption of a job, unless it had not begun: none of its requests was answered."""
        if self._started_s is None:
            return
        self.writer.write(
            JobEvent(
                policy=self.policy,
                job=self.recorded.job.id,
                tenant=self.recorded.job.tenant,
                started_s=self._started_s,
                finished_s=now_s,
                turns=self._turns,
                status="interrupted",
                error=cause,
            )
        )

    def _find_divergence(self, turn: int, prompt: Sequence[int]) -> int | None:
        """Find where the prompt diverges. A chat must extend the last turn; a recorded context may change as it did."""
        recorded = self.recorded
        return find_divergence(recorded.prompt(turn) if isinstance(recorded, ContextJob) else self._known, prompt)

    def _count_reusable(self, prompt: Sequence[int]) -> int:
        """Count the tokens, in whole blocks, of this prompt that a cache without evictions would serve.

        The last token of a reply is never fed back, and vLLM always computes the last token of a prompt.
        """
        if not self._known or not prompt:
            return 0
        differs_at = find_divergence(self._known, prompt)
        shared = len(self._known) - 1 if differs_at is None else differs_at
        return self._in_blocks(max(0, min(shared, len(prompt) - 1)))

    def _count_infinite(self, turn: int, reusable: int) -> int | None:
        """Count those that a cache without evictions would serve, of this job's last turn or of any request before."""
        context = self.recorded.job.turns[turn].context
        if self.lanes is None or context is None:
            return None
        return max(reusable, self._in_blocks(self.lanes.infinite_cache.count_hits(context)))

    def _in_blocks(self, tokens: int) -> int:
        return tokens - tokens % (self.block_size or 1)

    def _find_lost_call(self, outcome: JobOutcome) -> str | None:
        """Find a turn in which the server's tool parser read other calls from the tokens than were recorded."""
        for turn, (done, recorded) in enumerate(zip(outcome.turns, self.recorded.job.turns, strict=False)):
            found, wanted = ([call.name for call in each.tool_calls] for each in (done, recorded))
            if found != wanted:
                return f"turn {turn}: the server's tool parser found the calls {found}, the recording has {wanted}"
        return None

    def _check_reply(self, outcome: RequestOutcome) -> None:
        given = outcome.reply.output_token_ids
        if self._problem is not None or given is None:
            return
        wanted = self.recorded.reply(outcome.turn)
        if list(given) != wanted:
            position = find_divergence(given, wanted)
            position = len(given) if position is None else position
            self._problem = f"turn {outcome.turn}: the reply left the recording at output token {position}"
