"""`agentcache replay`: check, prepare, run each policy, report."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from rich.console import Console

from agentcache.config import list_knobs
from agentcache.errors import ServerError
from agentcache.replay.backends import Backend, EmbeddedBackend, ExternalBackend
from agentcache.replay.display import ReplayDisplay
from agentcache.replay.jobs import check_fit, describe_jobs, load_jobs
from agentcache.replay.output import divert_output
from agentcache.replay.recorded_job import RecordedJob
from agentcache.replay.run_folder import ENGINE_LOG, begin_run, find_versions
from agentcache.replay.runner import ReplayRunner
from agentcache.replay.settings import ReplaySettings
from agentcache.report.builder import write_report
from agentcache.report.events import EventWriter, PolicyEvent, RunRecord
from agentcache.report.summary import Summary

_INTERRUPTED = 130


def replay(settings: ReplaySettings) -> tuple[int, Summary]:
    """Exit status and figures; 0 when every job finished as recorded, 1 when one did not, 130 after Ctrl-C.

    Raises InputError, leaving nothing behind, for anything that cannot work.
    """
    settings.check()
    # What vLLM says while it only looks at its options is of no use; what is wrong with them is raised.
    with divert_output(Path(os.devnull)):
        backend: Backend = ExternalBackend(settings) if settings.base_url else EmbeddedBackend(settings)
        jobs, notes = load_jobs(settings.jobs, backend.tokenizer)
        check_fit(jobs, settings.jobs, cache_tokens=backend.cache_tokens, max_tokens=backend.max_tokens)
    _begin(settings, backend, jobs, notes)
    with divert_output(settings.out / ENGINE_LOG) as terminal:
        status = _run_policies(settings, backend, jobs, Console(file=terminal))
    return status, write_report([settings.out], settings.out)


def _begin(settings: ReplaySettings, backend: Backend, jobs: Sequence[RecordedJob], notes: tuple[str, ...]) -> None:
    record = RunRecord(
        command=settings.command,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        workload=settings.jobs.title,
        model=backend.model,
        device=backend.device,
        seed=settings.jobs.seed,
        jobs=len(jobs),
        cache_tokens=backend.cache_tokens,
        settings={
            **describe_jobs(settings.jobs, jobs),
            **list_knobs(settings.knobs),
            **({"engine_options": " ".join(settings.engine_options)} if settings.engine_options else {}),
        },
        versions=find_versions(),
        notes=(*notes, *backend.notes),
    )
    begin_run(settings.out, record)


def _run_policies(settings: ReplaySettings, backend: Backend, jobs: Sequence[RecordedJob], console: Console) -> int:
    """The exit status."""
    with EventWriter(settings.out) as writer:
        all_finished = asyncio.run(_Run(settings, backend, jobs, writer, console).run())
    if all_finished is None:
        console.print("interrupted: the jobs that finished are in the report")
        return _INTERRUPTED
    return 0 if all_finished else 1


class _Run:
    """The policies one after the other, until they are done or a signal comes."""

    def __init__(
        self,
        settings: ReplaySettings,
        backend: Backend,
        jobs: Sequence[RecordedJob],
        writer: EventWriter,
        console: Console,
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._jobs = jobs
        self._writer = writer
        self._console = console
        self._interrupted = False

    async def run(self) -> bool | None:
        """Whether every job finished; None when a signal ended the run."""
        policies = asyncio.ensure_future(self._run_all())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, policies)
        try:
            return await policies
        except (asyncio.CancelledError, ServerError):
            # Ctrl-C reaches the engine's processes too, so the engine may be the first to fail.
            if self._interrupted:
                return None
            raise

    def _interrupt(self, policies: asyncio.Future[bool]) -> None:
        # Once: a second signal must not break off the clean-up that the first one began.
        if not self._interrupted:
            self._interrupted = True
            policies.cancel()

    async def _run_all(self) -> bool:
        async with aclosing(self._backend):
            return all([await self._try_policy(policy) for policy in self._backend.policies])

    async def _try_policy(self, policy: str) -> bool:
        """Whether every job finished. An engine that does not start or dies ends its policy's run, and no other."""
        try:
            return await self._run_policy(policy) == 0
        except ServerError as error:
            if self._interrupted:
                raise
            log = self._settings.out / ENGINE_LOG
            self._console.print(f"{policy}: {error}; see {log}", style="red", markup=False)
            return False

    async def _run_policy(self, policy: str) -> int:
        """How many jobs failed."""
        with ReplayDisplay(policy, len(self._jobs), self._console) as display:
            async with self._backend.open(policy) as target:
                before = await asyncio.to_thread(target.endpoint.read_cache_facts)
                display.engine_ready(target.startup_s)
                runner = ReplayRunner(
                    policy,
                    target.endpoint,
                    self._writer,
                    display,
                    block_size=before.block_size,
                    request_timeout_s=self._settings.request_timeout_s,
                )
                failed = await runner.run(self._jobs)
                after = await asyncio.to_thread(target.endpoint.read_cache_facts)
        counted = after.count_since(before)
        self._writer.write(
            PolicyEvent(
                policy=policy,
                block_size=before.block_size,
                cache_tokens=before.cache_tokens,
                preemptions=counted.preemptions,
                evictions=counted.evictions,
                engine_startup_s=target.startup_s,
                model_runner=target.model_runner,
            )
        )
        return failed
