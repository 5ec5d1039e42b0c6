"""Makes the tables of results on models, several engines, the paper, its 70B, unfair loads, steps, the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import fmean, median

from load_tables import Runs, Table
from result_lines import Run, compare, select
from table_cells import OURS, list_stock, show_change, show_commits, show_place, show_share

# The simulator until then had no delays on the way to the engine.
BEFORE_DELAYS = "11102f1"
# Name on the page, the layers that differ, place, commits.
MODELS = (
    ("qwen3-30b-a3b", "experts", "GPU: H200", ("02314b1",)),
    ("gemma-3-12b", "windows", "GPU: H200", ("246e6d5",)),
    ("qwen3.5-9b", "recurrent", "GPU: H200", ("246e6d5", "26bd1e3", "8b4a45e", "0e8029e")),
    ("qwen3.5-9b", "recurrent", "simulated: H200", ("ee46db5", "add2168")),
    ("gpt-oss-20b", "windows, experts", "simulated: H200", ("8b4a45e",)),
    ("nemotron-h-8b", "recurrent", "simulated: H200", ("0e8029e",)),
    ("deepseek-v3", "latents, experts", "simulated: H200", ("a563e3d",)),
    ("llama-4-scout", "chunks, experts", "simulated: H200", ("0e8029e",)),
)


def make_models(runs: Runs) -> Table:
    head = ["model", "layers", "on", "commits", "seeds", "vllm, mean job (s)", OURS, "change"]
    rows: list[list[str]] = []
    for model, layers, where, commits in MODELS:
        some = select(runs["models"], model=model, where=where, commit=commits, rate=2.6, jobs=80, note="")
        if where.startswith("simulated"):
            # Of simulated models some were run with two sizes of the cache.
            some = select(some, cache_tokens=min(run.parameters["cache_tokens"] for run in some))
        pair = list_stock(some), list_stock(some, OURS)
        job = compare(*pair, "mean_job_s")
        rows.append(
            [
                model,
                layers,
                show_place(where),
                show_commits(*pair[1]),
                str(len(job.seeds)),
                f"{job.theirs:.1f}",
                f"{job.ours:.1f}",
                show_change(job),
            ]
        )
    return head, rows


def make_engines(runs: Runs) -> Table:
    head = ["engines by", "policy", "commits", "BFCL: mean job (s)", "P99 (s)", "hits", "sessions: mean job (s)"]
    pool = select(runs["replicas"], where="GPU: H200", gpus=4)
    pool = [run for run in pool if len(run.flags) == 1 and run.flags[0].startswith("routing: ")]
    knee = [run for run in select(pool, workload="bfcl", rate=5.2) if len(run.seeds or ()) > 1]
    rows: list[list[str]] = []
    for run in knee:
        sessions = select(pool, workload="claude-code", flags=run.flags, policy=run.policy)
        rows.append(
            [
                run.flags[0].removeprefix("routing: ").removeprefix("vllm-router, "),
                run.policy,
                show_commits(run),
                f"{run.figures['mean_job_s']:.1f}",
                f"{run.figures['ttft_p99_s']:.1f}",
                show_share(run.figures["hit_rate"]),
                f"{sessions[0].figures['mean_job_s']:.1f}" if sessions else "–",
            ]
        )
    return head, rows


def make_paper(runs: Runs) -> Table:
    head = ["conversations", "model", "on", "commit", "loads", "LRU's TTFT ÷ asymcache's", "LRU's ÷ agentcache's"]
    rows: list[list[str]] = []
    pool = [run for run in runs["paper"] if "ttft_mean_s" in run.figures and run.seeds == [0]]
    for data in ("longbench", "loogle_apart"):
        for model in ("llama-3.1-8b", "llama-3.1-70b"):
            some = [run for run in select(pool, workload=data, model=model) if run.commit != "431d510"]
            ours = select(some, policy="asymcache", flags=["lifespan_s: the P99 of pauses"])
            ratios = [_find_lru(some, run) / run.figures["ttft_mean_s"] for run in ours]
            rows.append([data, model, "simulated", show_commits(*ours), str(len(ours)), _show_span(ratios), "–"])
    measured = select(runs["paper"], where="GPU: H200")
    stock, asymcache, ours = (select(measured, policy=policy) for policy in ("vllm", "asymcache", OURS))
    times = [1 / compare(stock, other, "ttft_mean_s").ratio for other in (asymcache, ours)]
    rows.append(
        ["loogle_shared", "llama-3.1-8b", "H200", show_commits(*ours), "1", *(f"{ratio:.2f}" for ratio in times)]
    )
    return head, rows


def _find_lru(runs: Sequence[Run], other: Run) -> float:
    (run,) = select(runs, policy="lru", parameters=other.parameters)
    return run.figures["ttft_mean_s"]


def _show_span(ratios: Sequence[float]) -> str:
    return f"{fmean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


# Name on the page, workload, whether with a CPU cache. Each has stock's policy, or one that evicts as that does.
FOUR_GPUS = (
    ("BFCL", "bfcl", False),
    ("BFCL, CPU cache", "bfcl", True),
    ("conversations", "loogle_shared", False),
)


def make_four_gpus(runs: Runs) -> Table:
    head = ["load", "on", "commits", "policy", "seeds", "mean job (s)", "change", "first token (s)", "P99 (s)", "hits"]
    rows: list[list[str]] = []
    for where, (load, workload, cached) in product(("GPU: H200", "simulated: H200"), FOUR_GPUS):
        pool = select(runs["paper-70b"], where=where, workload=workload)
        pool = [run for run in pool if bool(run.parameters["cpu_cache_tokens"]) == cached]
        base = select(pool, policy=("vllm", "lru"))
        policies = dict.fromkeys(run.policy for run in (*base, *pool))
        rows += [[load, show_place(where), *_describe_policy(base, select(pool, policy=policy))] for policy in policies]
    return head, rows


def _describe_policy(base: Sequence[Run], some: Sequence[Run]) -> list[str]:
    job, first, last, hits = (
        compare(base, some, figure) for figure in ("mean_job_s", "ttft_mean_s", "ttft_p99_s", "hit_rate")
    )
    return [
        show_commits(*some),
        some[0].policy,
        str(len(job.seeds)),
        f"{job.ours:.1f}",
        "–" if base == some else show_change(job),
        f"{first.ours:.2f}",
        f"{last.ours:.1f}",
        show_share(hits.ours),
    ]


def make_programs(runs: Runs) -> Table:
    head = ["routing", "on", "commits", "tok/s a GPU", "of replies", "first token (s)", "P99 (s)", "hits"]
    rows = []
    for run in select(runs["replicas"], workload="claude-code", lanes=240):
        routing = run.flags[0].removeprefix("routing: ")
        shown = run.policy if run.policy == routing else f"{run.policy}, {routing}"
        rates = f"{run.figures['tok_s']:,.0f}", f"{run.figures['output_tok_s']:.0f}"
        first = f"{run.figures['ttft_mean_s']:.0f}", f"{run.figures['ttft_p99_s']:.0f}"
        rows.append(
            [shown, show_place(run.where), show_commits(run), *rates, *first, show_share(run.figures["hit_rate"])]
        )
    return head, rows


UNFAIR = {
    "sub-agents": "64 sub-agents of one context",
    "siblings": "51 siblings that each ask once",
    "tenant": "500 sessions of one tenant",
    "endless": "one job that never pauses",
}


def make_unfair(runs: Runs) -> Table:
    head = [
        "beside sixty web-search agents",
        "their mean job (s)",
        "their P99 (s)",
        "the newcomers' mean job (s)",
        "the newcomers' P99 (s)",
    ]
    rows: list[list[str]] = []
    for key, name in UNFAIR.items():
        some = select(runs["unfair"], workload=f"unfair: {key}")
        before, after = (select(some, policy=policy)[0].figures for policy in ("vllm", OURS))
        figures = ("web_agents_mean_job_s", "web_agents_ttft_p99_s", "beside_mean_job_s", "beside_ttft_p99_s")
        rows.append([name, *(f"{before[figure]:g} → {after[figure]:g}" for figure in figures)])
    return head, rows


def make_steps(runs: Runs) -> Table:
    policies = ("observe", OURS)
    head = ["`schedule()`", "vllm (ms)", *(f"{policy}, times" for policy in policies)]
    rows: list[list[str]] = []
    pool = select(runs["overhead"], commit="2cd4a39", flags=[])
    for case in dict.fromkeys(run.workload for run in pool):
        some = select(pool, workload=case)
        (stock,) = select(some, policy="vllm")
        times = [[run.figures["times_vllm"] for run in select(some, policy=policy)] for policy in policies]
        rows.append(
            [
                case.removeprefix("schedule(): "),
                f"{stock.figures['schedule_ms']:.2f}",
                *(f"{found[0]:.2f}" if found else "–" for found in times),
            ]
        )
    return head, rows


def make_error(runs: Runs) -> Table:
    head = ["simulated beside measured", "pairs", "mean job or tok/s: median off, most", "P90 job", "P99 first token"]
    rows: list[list[str]] = []
    for policy in ("vllm", OURS, "continuum-code"):
        written = [run for run in select(runs["simulator-error"], policy=policy) if run.commit != BEFORE_DELAYS]
        jobs = [
            *_list_written(written, "mean_job_s"),
            *_list_pairs(select([*runs["bfcl"], *runs["cpu-cache"]], policy=policy), "mean_job_s"),
        ]
        others = [_list_written(written, name) for name in ("p90_job_s", "ttft_p99_s")]
        rows.append([f"BFCL, {policy}", str(len(jobs)), *map(_show_gaps, (jobs, *others))])
    newer = [run for run in runs["models"] if (run.date or "") >= "2026-11-27" and not run.note]
    for name, gaps in (
        (f"other models, {OURS}", _list_pairs(select(newer, policy=OURS), "mean_job_s")),
        ("coding agents in closed loops", _list_pairs(runs["loops"], "tok_s")),
    ):
        rows.append([name, str(len(gaps)), _show_gaps(gaps), "–", "–"])
    chance = _list_chance(select(runs["bfcl"], where="GPU: H200"))
    rows.append(["chance: two measured runs that decide alike", str(len(chance)), _show_gaps(chance), "–", "–"])
    return head, rows


def _list_chance(measured: Sequence[Run]) -> list[float]:
    """Gaps between `vllm` and policies that take its victims one by one, with the same jobs on a GPU."""
    gaps = []
    for run in select(measured, policy=("lru", "max-score")):
        twins = select(measured, policy="vllm", parameters=run.parameters, seeds=run.seeds, source=run.source)
        same = [twin for twin in twins if len(run.seeds or ()) == 1 and "mean_job_s" in twin.figures]
        gaps += [run.figures["mean_job_s"] / twin.figures["mean_job_s"] - 1 for twin in same]
    return gaps


def _list_written(runs: Sequence[Run], name: str) -> list[float]:
    """Gaps of runs that stand beside what a GPU gave."""
    measured = f"measured_{name}"
    return [run.figures[name] / run.figures[measured] - 1 for run in runs if measured in run.figures]


def _list_pairs(runs: Sequence[Run], name: str) -> list[float]:
    """Gaps of simulated runs from the measured ones that differ from them in nothing else."""
    measured = {_name_load(run): run for run in runs if run.where.startswith("GPU: ") and name in run.figures}
    simulated = [run for run in runs if run.where.startswith("simulated: ") and name in run.figures]
    return [
        run.figures[name] / measured[_name_load(run)].figures[name] - 1
        for run in simulated
        if _name_load(run) in measured and (run.date or "") > "2026-11-22"
    ]


def _name_load(run: Run) -> str:
    return repr((run.source, run.parameters, run.model, run.seeds, run.policy, run.flags, run.gpus, run.note))


def _show_gaps(gaps: Sequence[float]) -> str:
    sizes = [abs(gap) for gap in gaps]
    return f"{show_share(median(sizes))}, {show_share(max(sizes))}" if sizes else "–"
