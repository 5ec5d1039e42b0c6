"""Formats the cells of the tables of docs/results.md: changes with their spread, tokens, commits, places."""

from __future__ import annotations

from collections.abc import Iterable

from result_lines import Comparison, Run, keep_latest

OURS = "agentcache"
STOCK_CPU_CACHE = ([], ["lazy CPU cache"], ["eager CPU cache"])


def show_change(found: Comparison) -> str:
    """Ours against theirs in per cent, less is sooner; the spread over seeds in brackets."""
    if found.spread is None:
        return f"{show_percent(found.ratio)} %"
    low, high = found.spread
    return f"{show_percent(found.ratio)} % ({show_percent(low)} to {show_percent(high)})"


def show_times(found: Comparison) -> str:
    if found.spread is None:
        return f"{found.ratio:.2f}"
    low, high = found.spread
    return f"{found.ratio:.2f} ({low:.2f} to {high:.2f})"


def show_share(share: float) -> str:
    return f"{100 * share:.0f} %"


def show_tokens(tokens: int) -> str:
    return f"{tokens // 1000:,}k" if tokens else "none"


def show_percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f}".replace("-", "−").replace("+0", "0").replace("−0", "0")


def show_commits(*runs: Run) -> str:
    # Those that were written down, in the order of the runs.
    return ", ".join(dict.fromkeys(run.commit.removeprefix("<=") for run in runs if run.commit)) or "–"


def list_stock(runs: Iterable[Run], policy: str = "vllm") -> list[Run]:
    """The runs of a policy with no flag, but for how vLLM's own CPU cache stores."""
    return keep_latest(run for run in runs if run.policy == policy and run.flags in STOCK_CPU_CACHE)


def show_place(where: str) -> str:
    """A simulation, or the name of the GPU."""
    return "simulated" if where.startswith("simulated") else where.removeprefix("GPU: ")
