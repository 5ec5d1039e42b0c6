"""Runs `agentcache replay`: checks, prepares, runs each policy, reports."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
from contextlib import aclosing
from pathlib import Path

from rich.console import Console

from agentcache.config import list_knobs
from agentcache.errors import ServerError
from agentcache.jobs.loader import LoadedRun, check_fit, describe_jobs, load_run
from agentcache.replay.backends import Backend, EmbeddedBackend, ExternalBackend
from agentcache.replay.runner import ReplayRunner
from agentcache.replay.settings import ReplaySettings
from agentcache.report.builder import write_report
from agentcache.report.events import EventWriter, PolicyEvent, RunRecord
from agentcache.report.summary import Summary
from agentcache.run.display import ReplayDisplay
from agentcache.run.folder import ENGINE_LOG, begin_run, find_versions
from agentcache.run.output import divert_output

_INTERRUPTED = 130


def replay(settings: ReplaySettings) -> tuple[int, Summary]:
    """Return exit status and figures: 0 if every job finished as recorded, 1 if one did not, 130 after Ctrl-C.

    Raises InputError, leaving nothing behind, for anything that cannot work.
    """
    settings.check()
    # What vLLM logs while it checks its options is of no use; errors are raised.
    with divert_output(Path(os.devnull)):
        backend: Backend = ExternalBackend(settings) if settings.base_url else EmbeddedBackend(settings)
        loaded = load_run(settings.jobs, backend.tokenizer)
        check_fit(loaded.jobs, settings.jobs, cache_tokens=backend.cache_tokens, max_tokens=backend.max_tokens)
    _begin(settings, backend, loaded)
    with divert_output(settings.out / ENGINE_LOG) as terminal:
        status = _run_policies(settings, backend, loaded, Console(file=terminal))
    return status, write_report([settings.out], settings.out).summary


def _begin(settings: ReplaySettings, backend: Backend, loaded: LoadedRun) -> None:
    record = RunRecord(
        command=settings.command,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        workload=settings.jobs.title,
        model=backend.model,
        device=backend.device,
        seed=settings.jobs.seed,
        jobs=loaded.expected,
        lanes=settings.jobs.concurrency,
        cache_tokens=backend.cache_tokens,
        settings={
            **describe_jobs(settings.jobs, loaded.jobs),
            **list_knobs(settings.knobs),
            **({"engine_options": " ".join(settings.engine_options)} if settings.engine_options else {}),
        },
        versions=find_versions(),
        notes=(*loaded.notes, *backend.notes),
    )
    begin_run(settings.out, record)


def _run_policies(settings: ReplaySettings, backend: Backend, loaded: LoadedRun, console: Console) -> int:
    """Run the policies and return the exit status."""
    with EventWriter(settings.out) as writer:
        all_finished = asyncio.run(_Run(settings, backend, loaded, writer, console).run())
    if all_finished is None:
        console.print("interrupted: the jobs that finished are in the report")
        return _INTERRUPTED
    return 0 if all_finished else 1


class _Run:
    """Runs the policies one after the other, until they are done or a signal comes."""

    def __init__(
        self,
        settings: ReplaySettings,
        backend: Backend,
        loaded: LoadedRun,
        writer: EventWriter,
        console: Console,
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._loaded = loaded
        self._writer = writer
        self._console = console
        self._interrupted = False

    async def run(self) -> bool | None:
        """Run, and tell whether every job finished; None if a signal ended the run."""
        policies = asyncio.ensure_future(self._run_all())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, policies)
        try:
            return await policies
        except (asyncio.CancelledError, ServerError):
            # Ctrl-C reaches the engine's processes as well, so the engine may fail first.
            if self._interrupted:
                return None
            raise

    def _interrupt(self, policies: asyncio.Future[bool]) -> None:
        # Only once: a second signal must not interrupt the clean-up that the first one began.
        if not self._interrupted:
            self._interrupted = True
            policies.cancel()

    async def _run_all(self) -> bool:
        async with aclosing(self._backend):
            return all([await self._try_policy(policy) for policy in self._backend.policies])

    async def _try_policy(self, policy: str) -> bool:
        """Tell whether every job finished. An engine that fails to start, or dies, ends the run of its policy only."""
        try:
            return await self._run_policy(policy) == 0
        except ServerError as error:
            if self._interrupted:
                raise
            log = self._settings.out / ENGINE_LOG
            self._console.print(f"{policy}: {error}; see {log}", style="red", markup=False)
            return False

    async def _run_policy(self, policy: str) -> int:
        """Run one policy and return how many jobs failed."""
        lanes = self._loaded.loop.begin() if self._loaded.loop else None
        with ReplayDisplay(policy, None if lanes else len(self._loaded.jobs), self._console) as display:
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
                failed = await (runner.run_lanes(lanes) if lanes else runner.run(self._loaded.jobs))
                after = await asyncio.to_thread(target.endpoint.read_cache_facts)
        counted = after.count_since(before)
        self._writer.write(
            PolicyEvent(
                policy=policy,
                block_size=before.block_size,
                cache_tokens=before.cache_tokens,
                preemptions=counted.preemptions,
                evictions=counted.evictions,
                hit_tokens=counted.hit_tokens,
                engine_startup_s=target.startup_s,
                model_runner=target.model_runner,
                gpus=target.gpus,
                window_s=lanes.window_s if lanes else None,
            )
        )
        return failed
