"""Reads `results/*.jsonl`, a line a run, checks the fields of each line, and compares runs seed by seed.

A line is an object with the fields of `Run`. A field that was not written down is null, and `commit` begins with "<="
where only the commit that published the figure is known. `figures` are those of the seed; of several seeds they are
means. Names end with their unit: `mean_job_s`, `p90_job_s`, `ttft_mean_s`, `ttft_p99_s`, `ttft_max_s` (seconds),
`tpot_ms`, `hit_rate` (share of prompt tokens that were cached), `recomputed_tokens`, `tok_s` (prompt and output tokens
a second and GPU), `tok_s_user_p50` (output tokens a second of a request's whole time, first token included).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from compare import find_interval

COMMIT = re.compile(r"(<=)?[0-9a-f]{7}")
DATE = re.compile(r"\d{4}-\d\d-\d\d")
# Below so many seeds an interval says nothing: the least and the most are shown.
SEEDS_OF_AN_INTERVAL = 5


@dataclass(frozen=True, slots=True)
class Run:
    """`where` is "GPU: NAME", "simulated: NAME" or "CPU: NAME".

    `source` is the run's command, or a commit and its page that told of the run.
    """

    date: str | None
    commit: str | None
    vllm: str
    where: str
    gpus: int
    workload: str
    parameters: dict[str, Any]
    model: str | None
    seeds: list[int] | None
    policy: str
    flags: list[str]
    figures: dict[str, float]
    source: str
    note: str = ""

    @classmethod
    def parse(cls, line: str) -> Self:
        """Raises TypeError for fields that lack or are too many, ValueError for one that is malformed."""
        run = cls(**json.loads(line))
        right = {
            "date": run.date is None or DATE.fullmatch(run.date),
            "commit": run.commit is None or COMMIT.fullmatch(run.commit),
            "where": run.where.startswith(("GPU: ", "simulated: ", "CPU: ")),
            "gpus": run.gpus >= 1,
            "seeds": run.seeds is None or bool(run.seeds),
            "figures": run.figures and all(isinstance(figure, int | float) for figure in run.figures.values()),
            "policy": run.policy,
            "source": run.source,
        }
        if wrong := [name for name, holds in right.items() if not holds]:
            raise ValueError(f"malformed: {', '.join(wrong)}")
        return run


def read_runs(folder: Path) -> dict[str, list[Run]]:
    """Read the runs of each file, by its name without ending. Raises ValueError that names the line."""
    runs: dict[str, list[Run]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                run = Run.parse(line)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path.name}:{number}: {error}") from error
            runs.setdefault(path.stem, []).append(run)
    return runs


def select(runs: Iterable[Run], **wanted: object) -> list[Run]:
    """Return the runs whose fields and parameters are as wanted; a tuple stands for any of its members."""

    def holds(run: Run, name: str, value: object) -> bool:
        found = getattr(run, name) if hasattr(run, name) else run.parameters.get(name)
        return found in value if isinstance(value, tuple) else found == value

    return [run for run in runs if all(holds(run, name, value) for name, value in wanted.items())]


def keep_latest(runs: Iterable[Run]) -> list[Run]:
    """Of runs of the same seeds keep the one with the latest date, of one date the last."""
    return [*{tuple(run.seeds or ()): run for run in sorted(runs, key=lambda run: run.date or "")}.values()]


def list_single(runs: Iterable[Run], figure: str) -> dict[int, float]:
    """Return the figure by seed, of runs of one seed."""
    single = [run for run in keep_latest(runs) if run.seeds and len(run.seeds) == 1]
    return {run.seeds[0]: run.figures[figure] for run in single if run.seeds and figure in run.figures}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Means of a figure over the seeds that both have, and the ratio of each seed, ours over theirs."""

    seeds: Sequence[int]
    theirs: float
    ours: float
    ratios: Sequence[float] = field(default=())

    @property
    def ratio(self) -> float:
        return fmean(self.ratios) if self.ratios else self.ours / self.theirs

    @property
    def spread(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean ratio, the least and the most of few seeds, None of one."""
        if len(self.ratios) >= SEEDS_OF_AN_INTERVAL:
            return find_interval(self.ratios)
        return (min(self.ratios), max(self.ratios)) if len(self.ratios) > 1 else None


def compare(theirs: Sequence[Run], ours: Sequence[Run], figure: str) -> Comparison:
    """Compare seed by seed; where only means were written down, by the means. Raises ValueError without both."""
    before, after = list_single(theirs, figure), list_single(ours, figure)
    if common := sorted(before.keys() & after.keys()):
        ratios = [after[seed] / before[seed] for seed in common]
        return Comparison(common, fmean(before[seed] for seed in common), fmean(after[seed] for seed in common), ratios)
    whole = [[run for run in runs if figure in run.figures] for runs in (theirs, ours)]
    if not all(whole):
        raise ValueError(f"no {figure} of both")
    before_run, after_run = (runs[-1] for runs in whole)
    return Comparison(after_run.seeds or (), before_run.figures[figure], after_run.figures[figure])


def list_values(runs: Iterable[Run], name: str) -> Iterator[Any]:
    """List the values that a field or parameter has in the runs, each once, in order."""
    yield from sorted({getattr(run, name) if hasattr(run, name) else run.parameters.get(name) for run in runs})
