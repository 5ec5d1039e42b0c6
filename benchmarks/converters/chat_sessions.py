"""Turns jobs with their text into sessions of token ids, by the tokenizer and chat template of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentcache.jobs.recorded_job import PromptWriter, TextJob, record_text
from agentcache.jobs.tokenizer import Tokenizer
from converters.recorded import Request, Session
from tool_runtime.agent.job import Job


def tokenize(jobs: Sequence[Job], tokenizer: Tokenizer) -> Iterator[Session]:
    """Give each job's prompts and replies as a server would have them. Of calls side by side the longest counts."""
    writer = PromptWriter(tokenizer)
    for recorded in record_text(jobs, tokenizer):
        yield Session(recorded.job.id, recorded.job.arrival_s, [*_list_requests(recorded, writer)])


def _list_requests(recorded: TextJob, writer: PromptWriter) -> Iterator[Request]:
    for turn, prompt, reply in zip(recorded.job.turns, writer.write(recorded), recorded.replies, strict=True):
        called = [call.name for call in turn.tool_calls]
        wait_s = max((result.duration_s for result in turn.results), default=0.0) + turn.pause_s
        yield Request(prompt, reply, called, wait_s)
