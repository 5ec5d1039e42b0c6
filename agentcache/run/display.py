"""Shows progress on a terminal; of a run a bar per policy, or lines if the output is no terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from agentcache.report.events import JobEvent

_LINES_PER_RUN = 10


def make_bar(console: Console, *columns: TextColumn) -> Progress:
    """Make a bar with a task's name, how much of it is done, and these columns; for terminals alone."""
    return Progress(
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        *columns,
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


class ReplayDisplay:
    """Shows one policy's run, as a context manager: every job that starts or ends.

    `jobs` is None where their number is not known.
    """

    def __init__(self, policy: str, jobs: int | None, console: Console) -> None:
        self._policy = policy
        self._jobs = jobs
        self._console = console
        self._running = self._failed = 0
        self._latencies: list[float] = []
        self._bar = make_bar(console, TextColumn("{task.fields[state]}"))
        self._task = self._bar.add_task(policy, total=jobs, state="getting ready")

    def __enter__(self) -> ReplayDisplay:
        """Show the bar, or a line where the output is no terminal."""
        self._bar.start()
        if not self._console.is_terminal:
            self._console.print(f"{self._policy}: getting ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the bar."""
        self._bar.stop()

    def engine_ready(self, startup_s: float | None) -> None:
        """Show that the engine is ready, after so many seconds if it was started now."""
        if startup_s is not None and not self._console.is_terminal:
            self._console.print(f"{self._policy}: engine ready after {startup_s:.0f} s")
        self._show()

    def job_started(self) -> None:
        """Count one more running job."""
        self._running += 1
        self._show()

    def job_ended(self, event: JobEvent) -> None:
        """Count a job as finished, with its latency, or as failed."""
        self._running -= 1
        if event.status == "finished":
            self._latencies.append(event.finished_s - event.started_s)
        else:
            self._failed += 1
        self._bar.advance(self._task)
        self._show()
        done = len(self._latencies) + self._failed
        if not self._console.is_terminal and (done == self._jobs or done % self._jobs_a_line() == 0):
            of = "" if self._jobs is None else f"/{self._jobs}"
            self._console.print(f"{self._policy}: {done}{of} jobs, {self._state()}")

    def _jobs_a_line(self) -> int:
        return _LINES_PER_RUN if self._jobs is None else max(1, self._jobs // _LINES_PER_RUN)

    def _show(self) -> None:
        self._bar.update(self._task, state=self._state())

    def _state(self) -> str:
        mean = f"mean {sum(self._latencies) / len(self._latencies):.1f} s" if self._latencies else "mean -"
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._running} running, {mean}{failed}"
