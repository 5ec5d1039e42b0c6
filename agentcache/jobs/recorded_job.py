"""Pairs a job with its replies, as the token ids that the server is to return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcache.jobs.context_job import ContextJob
from agentcache.jobs.recorded_reply import ReplyEncoder, count_tokens
from agentcache.jobs.tokenizer import Tokenizer
from tool_runtime.agent.job import Job


@dataclass(frozen=True, slots=True)
class TextJob:
    """A job whose chat is known. `replies[i]` is turn i's; `tokens` is the job's final context."""

    job: Job
    replies: tuple[list[int], ...]
    tokens: int

    def reply(self, turn: int) -> list[int]:
        """Return the ids of the turn's reply."""
        return self.replies[turn]


RecordedJob = TextJob | ContextJob


def record_text(jobs: Sequence[Job], tokenizer: Tokenizer) -> list[TextJob]:
    """Encode the jobs' replies. Raises InputError if the model's chat template cannot render one."""
    encoder = ReplyEncoder(tokenizer)
    return [TextJob(job, tuple(map(encoder.encode, job.turns)), count_tokens(job, tokenizer)) for job in jobs]
