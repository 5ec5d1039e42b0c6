"""The jobs of a replay with their replies as token ids, checked against the model and the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentcache.errors import InputError
from agentcache.replay.recorded_reply import ReplyEncoder, count_tokens
from agentcache.replay.settings import ReplaySettings
from agentcache.replay.tokenizer import Tokenizer
from tool_runtime.job import Job
from workloads.arrivals import draw_arrivals
from workloads.bfcl.result_file import count_entries, read_result_file
from workloads.bfcl.web_search import PAIRING_NOTE, build_jobs
from workloads.tool_latency import parse_tool_latency

DEFAULT_JOBS = 24
_RESULTS_NOTE = "Tool times are drawn from a distribution: BFCL result files record none."


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """`replies[i]` are the token ids that the server is to give for turn i; `tokens` is the job's final context."""

    job: Job
    replies: tuple[list[int], ...]
    tokens: int


def load_jobs(settings: ReplaySettings, tokenizer: Tokenizer) -> tuple[list[RecordedJob], tuple[str, ...]]:
    """The jobs in order of arrival, and the notes that a report of them must carry."""
    latency = parse_tool_latency(settings.tool_latency)
    if settings.results is not None:
        count = settings.jobs or count_entries(settings.results)
        jobs = read_result_file(
            settings.results,
            jobs=settings.jobs,
            tool_latency=latency,
            arrivals=_draw_arrivals(settings, count),
            seed=settings.seed,
        )
        notes = (_RESULTS_NOTE,)
    else:
        count = DEFAULT_JOBS if settings.jobs is None else settings.jobs
        jobs = build_jobs(
            count,
            encode=tokenizer.encode,
            scale=settings.scale,
            tool_latency=latency,
            arrivals=_draw_arrivals(settings, count),
            seed=settings.seed,
        )
        notes = (PAIRING_NOTE,)
    encoder = ReplyEncoder(tokenizer)
    recorded = [RecordedJob(job, tuple(map(encoder.encode, job.turns)), count_tokens(job, tokenizer)) for job in jobs]
    return recorded, notes


def check_fit(jobs: Sequence[RecordedJob], *, cache_tokens: int | None, max_tokens: int | None) -> None:
    """Raises InputError when the longest job exceeds the cache or the model's context. None is no limit."""
    longest = max(jobs, key=lambda recorded: recorded.tokens)
    name, tokens = longest.job.id, longest.tokens
    if max_tokens is not None and tokens > max_tokens:
        raise InputError(f"--scale: job {name} needs {tokens} tokens, the model takes {max_tokens}; lower the scale")
    if cache_tokens is not None and tokens > cache_tokens:
        raise InputError(
            f"--kv-tokens: job {name} needs {tokens} tokens, the cache holds {cache_tokens}; "
            f"give at least {tokens} or lower --scale"
        )


def describe_jobs(settings: ReplaySettings, jobs: Sequence[RecordedJob]) -> dict[str, str | int | float | bool | None]:
    """What decided the jobs, for the record of the run."""
    return {
        "arrival": settings.arrival,
        "rate": settings.rate,
        "cv": settings.cv,
        "scale": settings.scale,
        "tool_latency": settings.tool_latency,
        "longest_job_tokens": max(recorded.tokens for recorded in jobs),
    }


def _draw_arrivals(settings: ReplaySettings, count: int) -> list[float]:
    return draw_arrivals(settings.arrival, count, settings.rate, settings.cv, settings.seed)
