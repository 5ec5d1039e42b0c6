"""Runs the cells of a plan side by side, with a progress bar; what is done is kept when it breaks off."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.progress import TextColumn

from agentcache.errors import InputError
from agentcache.plan.settings import Cell, Outcome, PlanSettings, describe_cell
from agentcache.plan.worker import run_cell, start_worker
from agentcache.run.display import make_bar
from tool_runtime.agent.job import Job


class WorkerEndedError(InputError):
    """A process that simulated was killed; what was simulated before is in the sweep."""


@dataclass(slots=True)
class Sweep:
    """What was simulated so far, in the order of the cells."""

    cells: list[Cell] = field(default_factory=list)
    done: dict[Cell, Outcome] = field(default_factory=dict)
    # By policy, how many engines meet the target.
    fewest: dict[str, int | None] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes in the order of their cells."""
        return [self.done[cell] for cell in self.cells if cell in self.done]


class Pool:
    """Processes that simulate. Leaving it ends them, also what they are at."""

    def __init__(self, settings: PlanSettings, jobs: Sequence[Job], console: Console, sweep: Sweep) -> None:
        self._sweep = sweep
        # Not forked: vLLM and PyTorch have threads.
        self._executor = ProcessPoolExecutor(
            settings.count_workers(), multiprocessing.get_context("spawn"), start_worker, (settings, jobs)
        )
        self._progress = make_bar(console, TextColumn("{task.fields[latest]}"))
        self._console = console
        self._task = self._progress.add_task("simulating", total=0, latest="")

    def run(self, cells: Sequence[Cell]) -> None:
        """Simulate cells that were not yet; their outcomes are in the sweep as soon as they are there."""
        new = [cell for cell in dict.fromkeys(cells) if cell not in self._sweep.done]
        self._sweep.cells += new
        self._progress.update(self._task, total=len(self._sweep.cells))
        try:
            waiting = {self._executor.submit(run_cell, cell) for cell in order_starts(new)}
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._book(future)
        except BrokenProcessPool:
            raise WorkerEndedError(
                "--workers: a process that simulated was ended, perhaps as memory ran out; give fewer, or --requests"
            ) from None

    def run_one(self, cell: Cell) -> Outcome:
        """Simulate a cell, unless it was."""
        self.run([cell])
        return self._sweep.done[cell]

    def _book(self, future: Future[Outcome]) -> None:
        outcome = future.result()
        self._sweep.done[outcome.cell] = outcome
        name = describe_cell(outcome.cell)
        self._progress.update(self._task, advance=1, latest=name)
        if not self._console.is_terminal:
            self._console.print(f"{len(self._sweep.done)}/{len(self._sweep.cells)} simulated: {name}", highlight=False)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show progress, and end the processes at the end."""
        self._progress.start()
        try:
            yield
        finally:
            self._progress.stop()
            self._executor.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()


def order_starts(cells: Sequence[Cell]) -> list[Cell]:
    """Begin with the first, then with what takes longest, so that no process is left alone with that at the end.

    A CPU cache that a policy steers takes several times as long as what vLLM does with it, and that longer than none.
    """
    first, rest = list(cells[:1]), cells[1:]
    longest = sorted((cell for cell in rest if cell.cpu_tokens), key=lambda cell: cell.policy == "vllm")
    return [*first, *longest, *(cell for cell in rest if not cell.cpu_tokens)]


def find_fewest(run: Callable[[Cell], Outcome], cell: Cell, target_s: float, most: int) -> int | None:
    """Find the fewest engines, at most `most`, whose jobs take `target_s` in the mean; None if none are enough.

    Doubles until they are enough, then halves the gap: more engines are taken to be no slower.
    """

    def is_enough(engines: int) -> bool:
        outcome = run(replace(cell, engines=engines))
        return outcome.mean_s is not None and outcome.mean_s <= target_s

    too_few, enough = 0, 1
    while not is_enough(enough):
        if enough == most:
            return None
        too_few, enough = enough, min(2 * enough, most)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough
