"""Shows a bar while `agentcache profile` measures, then how well the fits hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from agentcache.policy.cost import FittedCostModel, PrefillBatch
from agentcache.policy.step_cost import Row
from agentcache.policy.step_fit import FittedStepCost
from agentcache.run.display import make_bar

_WORST = 10
# What published fits of such models reach is above 0.999.
_DOUBTFUL = 0.98
_LINES_PER_RUN = 10


@contextmanager
def show_progress(console: Console, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar, or a line now and then where the output is no terminal. To be called for each point that is done."""
    with make_bar(console) as bar:
        task = bar.add_task("measuring", total=total)
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            bar.advance(task)
            if not console.is_terminal and done % max(1, total // _LINES_PER_RUN) == 0:
                console.print(f"measured {done} of {total} points")

        yield advance


def print_fits(console: Console, prefills: FittedCostModel, steps: FittedStepCost) -> None:
    """Print R² of both, and the worst residuals: of prefills by seconds, of steps by share, as each fit weighs them."""
    table = _table(f"cost model: {len(prefills.residuals)} prefills, R² {prefills.r_squared:.5f}; the worst")
    for batch, error in prefills.residuals[:_WORST]:
        table.add_row(_name_batch(batch), *_cells(batch.seconds, error))
    console.print(table)
    cost = steps.step_cost
    overlap = "the longer counts" if cost.overlap is None else f"power {cost.overlap:g}"
    title = (
        f"step cost: {len(steps.residuals)} steps, R² {steps.r_squared:.5f}, compute and memory: {overlap}; the worst"
    )
    table = _table(title)
    for residual in steps.residuals[:_WORST]:
        table.add_row(_name_rows(residual.step.rows), *_cells(residual.step.seconds, residual.seconds))
    console.print(table)
    shares = sorted(abs(residual.share) for residual in steps.residuals)
    console.print(f"step cost is off by {_name_spread(shares)}")
    if min(prefills.r_squared, steps.r_squared) < _DOUBTFUL:
        console.print(
            f"R² is below {_DOUBTFUL}: times do not follow the sizes, as when something else uses the machine; "
            "measure again, with --overwrite, before you rely on this profile",
            style="red",
        )


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("tokens")
    for column in ("measured ms", "predicted ms", "off by"):
        table.add_column(column, justify="right")
    return table


def _cells(seconds: float, error: float) -> tuple[str, str, str]:
    return f"{1e3 * seconds:.2f}", f"{1e3 * (seconds - error):.2f}", f"{-100 * error / seconds:+.1f} %"


def _name_batch(batch: PrefillBatch) -> str:
    return f"l1 {batch.l1:,}  q1 {batch.q1:,}  l2 {batch.l2:,}  q2 {batch.q2:,}"


def _name_rows(rows: Sequence[Row]) -> str:
    """Name the rows: decodes in one, prefills one by one."""
    decodes = [row for row in rows if row.query == 1]
    parts = [f"{row.query:,} after {row.context:,}" for row in rows if row.query > 1]
    if decodes:
        parts.append(f"{len(decodes)} decodes at {sum(row.context for row in decodes) // len(decodes):,}")
    return " + ".join(parts)


def _name_spread(shares: Sequence[float]) -> str:
    """Name the middle and the 90th percentile of the errors, which are in order."""
    return f"{_percentile(shares, 50)} in half of the steps, {_percentile(shares, 90)} in 9 of 10"


def _percentile(ordered: Sequence[float], percent: int) -> str:
    return f"{100 * ordered[(len(ordered) - 1) * percent // 100]:.1f} %"
