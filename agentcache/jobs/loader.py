"""Loads the jobs of a run from its workload, and checks that they fit the model and the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentcache.errors import InputError
from agentcache.jobs.context_job import ContextJob, ContextWriter, find_ordinary_tokens
from agentcache.jobs.lanes import ClosedLoop, InfiniteCache
from agentcache.jobs.recorded_job import RecordedJob, record_text
from agentcache.jobs.settings import JobSettings
from agentcache.jobs.tokenizer import Tokenizer
from workloads.bfcl.web_search import PAIRING_NOTE, build_jobs
from workloads.loaded import LoadedJobs
from workloads.pacing import draw_arrivals, parse_tool_latency
from workloads.recording import sessions as recording
from workloads.recording.plays import SessionPlays, find_shared_blocks

DEFAULT_JOBS = 24
_TOKENS_NOTE = (
    "The recording has no text: every block of it stands as tokens that were drawn for it, equal where the recorded "
    "blocks are equal."
)
_NOT_DRAWN_NOTE = "The seed decides nothing: all seeds give the same jobs at the same times."
_LANES_NOTE = (
    "Closed loop: a lane begins the next session when its last has ended; its first session begins midway. Figures are "
    "of the requests that were answered within the measured time, which begins when all lanes have had their warm-up. "
    "Sessions that were under way at its end count as interrupted."
)
_ROLLOUT_NOTE = (
    "Rollout: {samples} samples of each session begin one after another. They have the full blocks of its first prompt "
    "in common, and blocks of their own behind them."
)


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """The jobs of a run and the notes that a report of them must carry. `loop` plays them in lanes, if there is one.

    `losses` are those of the notes that say what could not be read, or was never recorded.
    """

    jobs: Sequence[RecordedJob]
    notes: tuple[str, ...]
    loop: ClosedLoop | None = None
    losses: tuple[str, ...] = ()

    @property
    def expected(self) -> int:
        """Return how many jobs there will be at least."""
        return self.loop.lanes if self.loop else len(self.jobs)


def load_jobs(settings: JobSettings, tokenizer: Tokenizer) -> LoadedRun:
    """Load the jobs, in order of arrival, and the notes that a report of them must carry. Raises InputError."""
    load = {"bfcl": _load_bfcl, "recording": _load_recording}
    loaded = load[settings.kind](settings, tokenizer, settings.options())
    if loaded.jobs[0].turns[0].context is None:
        return LoadedRun([*record_text(loaded.jobs, tokenizer)], loaded.notes, losses=loaded.losses)
    writer = ContextWriter(find_ordinary_tokens(tokenizer))
    jobs = [ContextJob(job, writer) for job in loaded.jobs]
    return LoadedRun(jobs, (*loaded.notes, _TOKENS_NOTE), losses=loaded.losses)


def load_run(settings: JobSettings, tokenizer: Tokenizer) -> LoadedRun:
    """Load jobs, or the sessions of a closed loop where the settings ask for lanes. Raises InputError."""
    if settings.concurrency is None:
        loaded = load_jobs(settings, tokenizer)
        return loaded if settings.is_drawn else replace(loaded, notes=(*loaded.notes, _NOT_DRAWN_NOTE))
    return _load_closed_loop(settings, tokenizer, settings.options())


def load_all(runs: Sequence[JobSettings], tokenizer: Tokenizer, *, apart: bool) -> list[LoadedRun]:
    """Load several runs as `load_run` does; closed loops that differ in their lanes alone share their sessions.

    `apart`: they play them with blocks of their own, for a server whose cache no one empties between the runs.
    """
    known: dict[JobSettings, LoadedRun] = {}
    kept_cache = InfiniteCache() if apart else None
    loads = []
    for number, settings in enumerate(runs):
        alike = settings if settings.concurrency is None else replace(settings, concurrency=1)
        if alike not in known:
            known[alike] = load_run(alike, tokenizer)
        loaded = known[alike]
        if loaded.loop and settings.concurrency:
            copy = number if apart else 0
            loop = loaded.loop.with_lanes(settings.concurrency, copy=copy, kept_cache=kept_cache)
            loaded = replace(loaded, loop=loop)
        loads.append(loaded)
    return loads


def _load_closed_loop(settings: JobSettings, tokenizer: Tokenizer, options: dict[str, Any]) -> LoadedRun:
    loaded = _load_recording(settings, tokenizer, options)
    writer = ContextWriter(find_ordinary_tokens(tokenizer))
    loop = ClosedLoop(
        sessions=[ContextJob(job, writer) for job in loaded.jobs],
        plays=SessionPlays(loaded.jobs, find_shared_blocks(loaded.jobs), settings.seed, samples=options["rollout"]),
        writer=writer,
        lanes=options["concurrency"],
        duration_s=options["duration_s"],
        warm_up=options["warm_up"],
    )
    notes = (*loaded.notes, _TOKENS_NOTE, _LANES_NOTE)
    if options["rollout"] > 1:
        notes = (*notes, _ROLLOUT_NOTE.format(samples=options["rollout"]))
    return LoadedRun(loop.sessions, notes, loop, loaded.losses)


def check_fit(
    jobs: Sequence[RecordedJob], settings: JobSettings, *, cache_tokens: int | None, max_tokens: int | None
) -> None:
    """Raise InputError if the longest job exceeds the cache or the model's context. None is no limit."""
    flag = settings.taken.size_flag
    longest = max(jobs, key=lambda recorded: recorded.tokens)
    name, tokens = longest.job.id, longest.tokens
    if max_tokens is not None and tokens > max_tokens:
        most = min(max_tokens, cache_tokens or max_tokens)
        limits = f"the model takes {max_tokens}" + (f" and the cache holds {most}" if most < max_tokens else "")
        # Not --max-context, which may not have been given.
        place = flag if flag == "--scale" else settings.workload
        remedy = "give a smaller one" if flag == "--scale" else f"give {flag} {most} or less"
        raise InputError(f"{place}: job {name} needs {tokens} tokens, {limits}; {remedy}")
    if cache_tokens is not None and tokens > cache_tokens:
        raise InputError(
            f"--kv-tokens: job {name} needs {tokens} tokens, the cache holds {cache_tokens}; "
            f"give at least {tokens}, or a smaller {flag}"
        )


def describe_jobs(settings: JobSettings, jobs: Sequence[RecordedJob]) -> dict[str, str | int | float | bool | None]:
    """Describe what determined the jobs, for the record of the run."""
    options = {name: value for name, value in settings.options().items() if name != "jobs"}
    return {**options, "longest_job_tokens": max(recorded.tokens for recorded in jobs)}  # type: ignore[dict-item]


def _load_bfcl(settings: JobSettings, tokenizer: Tokenizer, options: dict[str, Any]) -> LoadedJobs:
    count = settings.jobs or DEFAULT_JOBS
    jobs = build_jobs(
        count,
        encode=tokenizer.encode,
        scale=options["scale"],
        tool_latency=parse_tool_latency(options["tool_latency"]),
        arrivals=draw_arrivals(options["arrival"], count, options["rate"], settings.seed),
        seed=settings.seed,
    )
    return LoadedJobs(jobs, (PAIRING_NOTE,))


def _load_recording(settings: JobSettings, _: Tokenizer, options: dict[str, Any]) -> LoadedJobs:
    return recording.load_sessions(
        settings.path, jobs=settings.jobs, max_context=options["max_context"], max_gap_s=options["max_gap_s"]
    )
