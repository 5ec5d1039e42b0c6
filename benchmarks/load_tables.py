"""Makes the tables of docs/results.md on loads: BFCL, closed loops, other agents.

Each is a function of the runs by file, which returns a head and rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from result_lines import Run, compare, list_values, select
from table_cells import (
    OURS,
    list_stock,
    show_change,
    show_commits,
    show_place,
    show_share,
    show_times,
    show_tokens,
)

Runs = Mapping[str, Sequence[Run]]
Table = tuple[list[str], list[list[str]]]
# The version of this release. Its decisions are frozen in tests/engine, so later commits decide the same.
RELEASE = ("03d4c81",)
# All lanes were run on this seed, some on a second one.
LOOP_SEED = 620
MODEL = "llama-3.1-8b"


def make_bfcl(runs: Runs) -> Table:
    head = ["jobs/s", "GPU + CPU cache", "seeds", "vllm, mean job (s)", OURS, "change", "P99, times", "hits"]
    rows: list[list[str]] = []
    pool = select([*runs["bfcl"], *runs["cpu-cache"]], where="simulated: H200", commit=RELEASE, jobs=80)
    for rate, cache, cpu in ((2.6, 500, 0), (1.3, 500, 0), (0.65, 500, 0), (2.6, 500, 500)):
        some = select(pool, rate=rate, cache_tokens=1000 * cache, cpu_cache_tokens=1000 * cpu)
        pair = list_stock(some), list_stock(some, OURS)
        job, first, hits = (compare(*pair, figure) for figure in ("mean_job_s", "ttft_p99_s", "hit_rate"))
        rows.append(
            [
                f"{rate:g}",
                f"{cache}k + {cpu}k" if cpu else f"{cache}k",
                str(len(job.seeds)),
                f"{job.theirs:.1f}",
                f"**{job.ours:.1f}**",
                show_change(job),
                show_times(first),
                f"{show_share(hits.theirs)} → {show_share(hits.ours)}",
            ]
        )
    return head, rows


# Loads that were run on GPUs: jobs a second, thousand tokens of CPU cache, vLLM, seeds.
GPU_LOADS = (
    (2.6, 0, "0.32.0", (507,)),
    *((rate, cpu, vllm, (500, 501)) for cpu in (0, 250) for rate in (1.3, 2.6) for vllm in ("0.32.0", "0.33.0")),
    (2.6, 125, "0.32.0", (433, 434)),
    (2.6, 1000, "0.32.0", (433, 434)),
)


def make_bfcl_gpu(runs: Runs) -> Table:
    head = ["jobs/s", "CPU cache", "vLLM", "commits", "vllm, mean job (s)", OURS, "change", "P99, times"]
    rows: list[list[str]] = []
    pool = select([*runs["bfcl"], *runs["cpu-cache"]], where="GPU: H200", cache_tokens=500_000)
    for rate, cpu, vllm, seeds in GPU_LOADS:
        some = select(pool, rate=rate, cpu_cache_tokens=1000 * cpu, vllm=vllm, seeds=tuple([seed] for seed in seeds))
        pair = list_stock(some), list_stock(some, OURS)
        job = compare(*pair, "mean_job_s")
        # Of a few runs the mean alone was written down.
        told = all(any("ttft_p99_s" in run.figures for run in side) for side in pair)
        rows.append(
            [
                f"{rate:g}",
                show_tokens(1000 * cpu),
                vllm.removesuffix(".0"),
                show_commits(*pair[0], *pair[1]),
                f"{job.theirs:.1f}",
                f"**{job.ours:.1f}**" if job.ratio < 1 else f"{job.ours:.1f}",
                show_change(job),
                show_times(compare(*pair, "ttft_p99_s")) if told else "–",
            ]
        )
    return head, rows


def make_flags(runs: Runs) -> Table:
    head = ["policy and flag", "1.3 jobs/s: mean job (s)", "P99 (s)", "2.6 jobs/s: mean job (s)", "P99 (s)"]
    pool = select(runs["bfcl"], where="simulated: H200", commit="ee46db5", cache_tokens=500_000)
    pool = [run for run in pool if run.seeds[0] in range(550, 555)]
    rows: list[list[str]] = []
    for policy, flag in (*(("vllm", flag) for flag in sorted({*map(tuple, (run.flags for run in pool))})), (OURS, ())):
        cells = []
        for rate in (1.3, 2.6):
            some = select(pool, policy=policy, flags=list(flag), rate=rate)
            cells += [f"{fmean(run.figures[name] for run in some):.1f}" for name in ("mean_job_s", "ttft_p99_s")]
        rows.append([" ".join((policy, *(f"`{word}`" for word in flag))), *cells])
    return head, rows


def make_loops(runs: Runs) -> Table:
    pool = select(runs["loops"], where="simulated: H200", commit=RELEASE, model=MODEL, seeds=([LOOP_SEED],))
    lanes = [*list_values(pool, "lanes")]
    head = ["CPU cache", "policy", *(f"{count} lanes" for count in lanes)]
    rows: list[list[str]] = []
    for cpu in list_values(pool, "cpu_cache_tokens"):
        for policy in ("vllm", OURS):
            cells = []
            for count in lanes:
                some = list_stock(select(pool, lanes=count, cpu_cache_tokens=cpu), policy)
                means = [fmean(run.figures[name] for run in some) for name in ("tok_s", "ttft_p99_s") if some]
                cells.append(f"{means[0] / 1000:.1f}; {means[1]:.0f}" if some else "–")
            rows.append([show_tokens(cpu), policy, *cells])
    return head, rows


def make_single_loops(runs: Runs) -> Table:
    """A row a run on a GPU, and a simulated one of another model."""
    head = ["lanes", "CPU cache", "on", "commits", "seconds", "vllm (tok/s)", OURS, "times", "of one user", "P99 (s)"]
    pool = [run for run in runs["loops"] if run.where == "GPU: H200" or run.model != MODEL]
    pool = [run for run in pool if run.note != "the version before"]
    keys = {(run.parameters["lanes"], run.parameters["cpu_cache_tokens"], run.where, tuple(run.seeds)) for run in pool}
    rows: list[list[str]] = []
    for lanes, cpu, where, seeds in sorted(keys):
        some = select(pool, lanes=lanes, cpu_cache_tokens=cpu, where=where, seeds=[*seeds])
        # Stock as it is, or else behind vllm-router's program scheduling, a row for each capacity that it was given.
        stock = list_stock(some)
        rivals = [stock] if stock else [[run] for run in some if run.policy == "vllm"]
        ours = list_stock(some, OURS)
        rows += [describe_loop(rival, ours, flagged=not stock) for rival in rivals if ours]
    return head, rows


def describe_loop(theirs: list[Run], ours: list[Run], *, flagged: bool) -> list[str]:
    lanes, cpu = (ours[-1].parameters[name] for name in ("lanes", "cpu_cache_tokens"))
    total, user, first = (compare(theirs, ours, name) for name in ("tok_s", "tok_s_user_p50", "ttft_p99_s"))
    seconds = dict.fromkeys(str(side[-1].parameters["measured_s"]) for side in (theirs, ours))
    return [
        f"{lanes}; {theirs[-1].flags[0]}" if flagged else str(lanes),
        show_tokens(cpu),
        show_place(ours[-1].where),
        show_commits(*theirs, *ours),
        " / ".join(seconds),
        f"{total.theirs:,.0f}",
        f"{total.ours:,.0f}",
        show_times(total),
        f"{user.theirs:.3g} → {user.ours:.3g}",
        f"{first.theirs:.0f} → {first.ours:.0f}",
    ]


# Workload, name on the page, file, commits, and what else tells the load from others.
AGENTS: tuple[tuple[str, str, str, tuple[str, ...], dict[str, object]], ...] = (
    ("BFCL multi-turn", "bfcl-multi-turn", "agents", ("b13186d",), {"jobs": 30}),
    ("the same, 240 jobs", "bfcl-multi-turn", "agents", ("ee46db5",), {"jobs": 240}),
    ("tau-bench", "tau-bench", "agents", ("b13186d",), {"jobs": 60}),
    ("the same, 200 jobs", "tau-bench", "agents", ("ee46db5",), {"jobs": 200}),
    ("mini-swe-agent", "mini-swe-agent", "agents", ("b13186d",), {}),
    ("WebDancer", "webdancer", "agents", ("0cd465b",), {}),
    ("Claude Code, 16 sessions", "claude-code", "agents", ("0cd465b",), {}),
    ("Claude Code, 32, CPU cache", "claude-code", "coding", ("d2440fd", "deb324f"), {"cpu_cache_tokens": 200_000}),
)


def make_agents(runs: Runs) -> Table:
    head = ["agents", "on", "commits", "seeds", "vllm, mean job (s)", OURS, "change", "slowest first token (s)"]
    rows: list[list[str]] = []
    for name, workload, file, commits, also in AGENTS:
        some = select(runs[file], workload=workload, commit=commits, **also)
        if measured := [run for run in some if run.where.startswith("GPU")]:
            some = measured
        pair = list_stock(some), list_stock(some, OURS)
        job, first = (compare(*pair, figure) for figure in ("mean_job_s", "ttft_max_s"))
        rows.append(
            [
                name,
                show_place(pair[1][-1].where),
                show_commits(*pair[0], *pair[1]),
                str(len(job.seeds)),
                f"{job.theirs:.1f}",
                f"{job.ours:.1f}",
                show_change(job),
                f"{first.theirs:.1f} → {first.ours:.1f}",
            ]
        )
    return head, rows
