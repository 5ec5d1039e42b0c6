"""Runs `agentcache replay`: checks, prepares, runs each policy, reports."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from rich.console import Console

from agentcache.config_reader import list_knobs
from agentcache.errors import INTERRUPTED, ServerError
from agentcache.jobs.lanes import Lanes
from agentcache.jobs.loader import LoadedRun, check_fit, describe_jobs, load_all
from agentcache.replay.backends import Backend, EmbeddedBackend, ExternalBackend
from agentcache.replay.runner import ReplayRunner
from agentcache.replay.settings import ReplaySettings
from agentcache.report.builder import write_report
from agentcache.report.events import EventWriter, PolicyEvent, RunRecord
from agentcache.report.summary import Summary
from agentcache.run.display import ReplayDisplay
from agentcache.run.folder import ENGINE_LOG, begin_run, divert_output, find_versions


def replay(settings: ReplaySettings) -> tuple[int, Summary]:
    """Return exit status and figures: 0 if every job finished as recorded, 1 if one did not, 130 after Ctrl-C.

    Raises InputError, leaving nothing behind, for anything that cannot work.
    """
    status, (summary,) = replay_all([settings])
    return status, summary


def replay_all(runs: Sequence[ReplaySettings]) -> tuple[int, list[Summary]]:
    """Run one after another on the same server or engine, whose settings are those of the first.

    They differ in jobs, in the order of their policies and in their folders; the engine's log is in the first one's.
    Returns the worst exit status and the figures of those that began. Raises InputError as `replay` does, for any.
    """
    first = runs[0]
    for settings in runs:
        settings.check()
    # What vLLM logs while it checks its options is of no use; errors are raised.
    with divert_output(Path(os.devnull)):
        backend: Backend = ExternalBackend(first) if first.base_url else EmbeddedBackend(first)
        # A server that runs already keeps what one run left in its cache.
        apart = first.base_url is not None
        loads = load_all([settings.jobs for settings in runs], backend.tokenizer, apart=apart)
        for settings, loaded in zip(runs, loads, strict=True):
            check_fit(loaded.jobs, settings.jobs, cache_tokens=backend.cache_tokens, max_tokens=backend.max_tokens)
    _begin(first, backend, loads[0])
    log = first.out / ENGINE_LOG
    with divert_output(log) as terminal:
        replayed = _Runs(backend, log, Console(file=terminal))
        status = asyncio.run(replayed.run(list(zip(runs, loads, strict=True))))
    return status, replayed.summaries


def _begin(settings: ReplaySettings, backend: Backend, loaded: LoadedRun) -> None:
    record = RunRecord(
        command=settings.command,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        workload=settings.jobs.workload,
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
        losses=loaded.losses,
    )
    begin_run(settings.out, record, overwrite=settings.overwrite)


class _Runs:
    """Runs policies one after the other, until they are done or a signal comes."""

    def __init__(self, backend: Backend, log: Path, console: Console) -> None:
        """`log` has what the engine says in all of them."""
        self.summaries: list[Summary] = []
        """The figures of the runs that began; their reports are written."""
        self._backend = backend
        self._log = log
        self._console = console
        self._interrupted = False

    async def run(self, runs: Sequence[tuple[ReplaySettings, LoadedRun]]) -> int:
        """Run, and return the exit status."""
        policies = asyncio.ensure_future(self._run_all(runs))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, policies)
        try:
            return 0 if await policies else 1
        except (asyncio.CancelledError, ServerError):
            # Ctrl-C reaches the engine's processes as well, so the engine may fail first.
            if not self._interrupted:
                raise
        self._console.print("interrupted: the jobs that finished are in the report")
        return INTERRUPTED

    def _interrupt(self, policies: asyncio.Future[bool]) -> None:
        # Only once: a second signal must not interrupt the clean-up that the first one began.
        if not self._interrupted:
            self._interrupted = True
            policies.cancel()

    async def _run_all(self, runs: Sequence[tuple[ReplaySettings, LoadedRun]]) -> bool:
        """Tell whether every job finished."""
        finished = []
        async with aclosing(self._backend):
            for settings, loaded in runs:
                if len(runs) > 1:
                    self._console.print(settings.out.name, highlight=False)
                # The first has begun before its log.
                if self.summaries:
                    _begin(settings, self._backend, loaded)
                try:
                    finished += await self._run_policies(settings, loaded)
                finally:
                    # Not after the last run: stopping an engine takes long, and may be cut short.
                    self.summaries.append(write_report([settings.out], settings.out).summary)
        return all(finished)

    async def _run_policies(self, settings: ReplaySettings, loaded: LoadedRun) -> list[bool]:
        """Tell of each policy whether every job finished."""
        with EventWriter(settings.out) as writer:
            one = _Run(settings, self._backend, loaded, writer, self._console)
            return [await self._try_policy(one, policy) for policy in one.policies]

    async def _try_policy(self, run: _Run, policy: str) -> bool:
        """Tell whether every job finished. An engine that fails to start, or dies, ends the run of its policy only."""
        try:
            return await run.run_policy(policy) == 0
        except ServerError as error:
            if self._interrupted:
                raise
            self._console.print(f"{policy}: {error}; see {self._log}", style="red", markup=False)
            return False


class _Run:
    """One run: its jobs, under a policy at a time."""

    def __init__(
        self, settings: ReplaySettings, backend: Backend, loaded: LoadedRun, writer: EventWriter, console: Console
    ) -> None:
        # A server that runs already has its own.
        self.policies = settings.policies or backend.policies
        self._settings = settings
        self._backend = backend
        self._loaded = loaded
        self._writer = writer
        self._console = console

    async def run_policy(self, policy: str) -> int:
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
                    session_prefix=target.session_prefix,
                )
                failed = await (
                    self._run_lanes(runner, policy, target.gpus, lanes) if lanes else runner.run(self._loaded.jobs)
                )
                after = await asyncio.to_thread(target.endpoint.read_cache_facts)
        counted = after.count_since(before)
        # Where windows and states share the blocks, all blocks' tokens are more than fit of requests.
        asked = self._backend.cache_tokens
        self._writer.write(
            PolicyEvent(
                policy=policy,
                block_size=before.block_size,
                cache_tokens=before.cache_tokens if asked is None else asked,
                preemptions=counted.preemptions,
                evictions=counted.evictions,
                hit_tokens=counted.hit_tokens,
                waits_s=counted.waits_s,
                engine_startup_s=target.startup_s,
                model_runner=target.model_runner,
                gpus=target.gpus,
                window_s=lanes.window_s if lanes else None,
            )
        )
        return failed

    async def _run_lanes(self, runner: ReplayRunner, policy: str, gpus: int, lanes: Lanes) -> int:
        """Run a closed loop. Write for how long an interrupted one was measured: the report says what it served."""
        try:
            return await runner.run_lanes(lanes)
        except asyncio.CancelledError:
            if lanes.window_s is not None:
                self._writer.write(PolicyEvent(policy=policy, gpus=gpus, window_s=lanes.window_s, broken_off=True))
            raise
