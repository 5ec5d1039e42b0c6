"""The figures of a row of `benchmarks/replicas.py`: over the jobs of all its replays, and what was seen meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from family_figures import describe_families
from gpu_watch import Sample, find_busy_share, find_span
from prometheus_client.parser import text_string_to_metric_families

from agentcache.report.events import read_events, read_run_record
from agentcache.report.policy_run import PolicyRun
from agentcache.report.summary import summarize_policy
from agentcache.report.table import NO_DATA


def count_computed(url: str) -> list[float]:
    """Count the prompt tokens that each engine has computed, in the order of the engines."""
    by_engine: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text):
        for sample in family.samples:
            if sample.name == "vllm:prompt_tokens_by_source_total" and sample.labels["source"] == "local_compute":
                by_engine[sample.labels["engine"]] = by_engine.get(sample.labels["engine"], 0.0) + sample.value
    return [by_engine[engine] for engine in sorted(by_engine)]


def measure_busy(samples: Sequence[Sample], folders: Sequence[Path]) -> float | None:
    """Measure how busy the GPUs were during replays."""
    return find_busy_share(samples, [find_span(read_run_record(folder), read_run(folder)) for folder in folders])


def describe(name: str, folders: Sequence[Path], seen: Mapping[str, Any]) -> dict[str, str]:
    """Describe a row by the names of columns. `seen` is what its replays do not know."""
    runs = [read_run(folder) for folder in folders]
    each = [summarize_policy(run) for run in runs]
    whole = summarize_policy(add_up(runs))
    loops = [found.throughput for found in each if found.throughput]
    latency_s, ttft_s = whole.job_latency_s, whole.ttft_s
    computed = seen["computed_tokens"]
    parents, strangers, split = describe_families(runs, seen["homes"])
    return {
        "row": name,
        "jobs": f"{whole.finished} of {whole.jobs}",
        "mean (s)": _show(latency_s.mean),
        "each seed": " / ".join(_show(found.job_latency_s.mean) for found in each),
        "P90 (s)": _show(latency_s.p90),
        "P99 (s)": _show(latency_s.p99),
        "parents, mean (s)": parents,
        "families split": split,
        "TTFT mean; P99; worst (s)": f"{_show(ttft_s.mean, 2)}; {_show(ttft_s.p99)}; {_show(ttft_s.max)}",
        "strangers, P99 TTFT (s)": strangers,
        "TPOT (ms)": _show(whole.tpot_s.mean, scale=1000),
        "hits (%)": _show(whole.token_hit_rate, scale=100),
        "recomputed": _show(whole.recomputed_tokens, 0),
        "busiest": f"{max(computed) / np.mean(computed):.2f}",
        "tok/s of lanes": _show(sum(loop.total_tok_s for loop in loops) or None, 0),
        "of replies": _show(sum(loop.output_tok_s for loop in loops) or None, 0),
        "GPUs busy (%)": _show(seen["busy"], scale=100),
    }


def write_markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table, without columns of which no row says anything."""
    names = [name for name in (rows[0] if rows else ()) if any(row[name] != NO_DATA for row in rows)]
    lines = [names, ["---:"] * len(names), *([row[name] for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def read_run(folder: Path) -> PolicyRun:
    """Read the only policy of a replay against a server that runs."""
    run = PolicyRun()
    for event in read_events(folder):
        run.add(event)
    return run


def add_up(runs: Sequence[PolicyRun]) -> PolicyRun:
    """Return the events of all; those of a closed loop are measured within the last one's time."""
    whole = PolicyRun(end=runs[-1].end)
    for run in runs:
        whole.requests += run.requests
        whole.tool_calls += run.tool_calls
        whole.jobs += run.jobs
    return whole


def _show(value: float | None, decimals: int = 1, scale: float = 1.0) -> str:
    return NO_DATA if value is None else f"{scale * value:,.{decimals}f}"
