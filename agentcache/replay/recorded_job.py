"""A job with its replies as the token ids that the server is to give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcache.replay.context_job import ContextJob
from agentcache.replay.recorded_reply import ReplyEncoder, count_tokens
from agentcache.replay.tokenizer import Tokenizer
from tool_runtime.job import Job


@dataclass(frozen=True, slots=True)
class TextJob:
    """A job whose chat is known. `replies[i]` is turn i's; `tokens` is the job's final context."""

    job: Job
    replies: tuple[list[int], ...]
    tokens: int

    def reply(self, turn: int) -> list[int]:
        return self.replies[turn]


RecordedJob = TextJob | ContextJob


def record_text(jobs: Sequence[Job], tokenizer: Tokenizer) -> list[TextJob]:
    """Raises InputError when the model's chat template cannot say a recorded reply."""
    encoder = ReplyEncoder(tokenizer)
    return [TextJob(job, tuple(map(encoder.encode, job.turns)), count_tokens(job, tokenizer)) for job in jobs]
