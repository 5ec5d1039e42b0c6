"""Which rows `paper_70b.py` has, in which order they run, what there is time for, and their table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from result_lines import Run
from table_cells import show_share, show_tokens
from tables import format_table

PROFILE, REPLIES, BFCL, SESSIONS = "profile", "replies", "bfcl", "loogle_shared"
# Seconds of a command, its engine's start among them, until one has been seen.
EXPECTED_S = {PROFILE: 480.0, REPLIES: 480.0, BFCL: 330.0, SESSIONS: 1200.0}
COLUMNS: dict[str, Callable[[Mapping[str, float]], str]] = {
    "mean job (s)": lambda one: f"{one['mean_job_s']:.1f}",
    "P90 (s)": lambda one: f"{one['p90_job_s']:.1f}",
    "first token, mean (s)": lambda one: f"{one['ttft_mean_s']:.2f}",
    "P99 (s)": lambda one: f"{one['ttft_p99_s']:.1f}",
    "hits": lambda one: show_share(one["hit_rate"]),
}
SHOWN_OF_ERROR = 100


@dataclass(frozen=True, slots=True)
class Row:
    """`cached`: with a CPU cache as large as the GPUs'."""

    workload: str
    policy: str
    seed: int = 0
    cached: bool = False

    @property
    def name(self) -> str:
        if self.workload in (PROFILE, REPLIES):
            return self.workload
        return f"{self.workload}{'-cached' * self.cached}-{self.seed}-{self.policy}"


def list_rows(seeds: Sequence[int], *, measured: bool) -> list[Row]:
    """List them, what matters most first."""
    rows = [Row(PROFILE, "lru")] * measured
    for seed in seeds:
        rows += [Row(BFCL, policy, seed) for policy in ("vllm", "agentcache", "continuum-code")]
        rows += [Row(BFCL, policy, seed, cached=True) for policy in ("agentcache", "vllm")]
        rows += [Row(REPLIES, "agentcache")] * (measured and seed == seeds[0])
        rows += [Row(SESSIONS, policy, seed) for policy in ("lru", "asymcache", "agentcache")]
    return rows


def find_row(run: Run) -> Row:
    """Find the row that a line is of."""
    seed = run.seeds[0] if run.seeds else 0
    return Row(run.workload, run.policy, seed, cached=bool(run.parameters.get("cpu_cache_tokens")))


def choose_next(left: Sequence[Row], runs: Mapping[Row, Run], seconds: float) -> Row | None:
    """Choose the first that can be expected to end in time; None where none can."""
    return next((row for row in left if expect_s(row, runs) <= seconds), None)


def expect_s(row: Row, runs: Mapping[Row, Run]) -> float:
    """The longest that a row of the same workload took, if any has ended."""
    seen = [run.figures["wall_s"] for other, run in runs.items() if other.workload == row.workload]
    return max(seen, default=EXPECTED_S[row.workload])


def make_table(rows: Sequence[Row], runs: Mapping[Row, Run], errors: Mapping[str, str]) -> str:
    """Make the Markdown of all rows. `errors` are the last ones, by the row's name."""
    cells = [[row.name, *describe(row, runs.get(row), errors.get(row.name))] for row in rows]
    return format_table(["row", "cache", *COLUMNS, "command (s)", ""], cells)


def describe(row: Row, run: Run | None, error: str | None) -> list[str]:
    if run is None:
        told = "not run" if error is None else f"failed: {' '.join(error.split())[:SHOWN_OF_ERROR]}".replace("|", "/")
        return ["–"] * (len(COLUMNS) + 2) + [told]
    wall = f"{run.figures['wall_s']:.0f}"
    if row.workload in (PROFILE, REPLIES):
        figures = {name: figure for name, figure in run.figures.items() if name != "wall_s"}
        told = ", ".join(f"{name} {figure:g}" for name, figure in figures.items())
        return ["–"] * (len(COLUMNS) + 1) + [wall, told]
    sizes = [run.parameters[name] for name in ("cache_tokens", "cpu_cache_tokens")]
    cache = " + ".join(show_tokens(size) for size in sizes if size)
    return [cache, *(cell(run.figures) for cell in COLUMNS.values()), wall, ", ".join(run.flags)]
