"""Makes the table of README, gain and cost for four kinds of agents; and that of families, which it has no room for."""

from __future__ import annotations

from statistics import fmean

from load_tables import AGENTS, MODEL, RELEASE, Runs, Table
from result_lines import Comparison, Run, compare, select
from table_cells import OURS, list_stock, show_change, show_percent, show_share, show_times, show_tokens

LANES = 16
# Agents on small contexts, by their workloads.
SMALL = ("bfcl-multi-turn", "tau-bench", "mini-swe-agent")
# Runs with sub-agents: on one GPU by rate, tokens of cache and commit; over several by commit.
FAMILY_LOADS = (
    (0.1, 500_000, "e110f05"),
    (0.2, 500_000, "e110f05"),
    (0.1, 250_000, "c18d225"),
    (0.6, 80_000, "c18d225"),
)
FAMILY_ENGINES = "6ac2deb"
ENGINES_RATES = (0.8, 1.6)
FAMILY_ROUTING = (
    ("vllm", "routing: least-loaded", "vllm, its balancer"),
    ("vllm", "routing: sticky", "vllm, a session stays"),
    (OURS, "routing: agentcache", "agentcache"),
)
FAMILY_FIGURES = ("parents_mean_job_s", "strangers_mean_job_s", "strangers_ttft_p99_s")


def make_first(runs: Runs) -> Table:
    head = ["agents", "load", "gain", "cost: P99 of first tokens"]
    bfcl = select(runs["bfcl"], where="simulated: H200", commit=RELEASE, jobs=80, cache_tokens=500_000)
    over, light = select(bfcl, rate=2.6), select(bfcl, rate=0.65)
    loops = select(runs["loops"], where="simulated: H200", commit=RELEASE, model=MODEL, measured_s=600)
    lanes = select(loops, lanes=LANES, cpu_cache_tokens=0)
    served = show_change(compare_policies(lanes, "tok_s"))
    return head, [
        ["web-search", "twice what the GPU can serve", *show_job(over)],
        ["coding", f"{LANES} at a time, the cache holds five", f"tokens/s {served}", show_first(lanes)],
        ["on contexts below 10,000 tokens", *show_small(runs)],
        ["web-search", "nearly everything fits", *show_job(light)],
    ]


def make_families(runs: Runs) -> Table:
    """Make two rows a load: the sessions that have sub-agents, and those beside them that have none."""
    head = ["load", "sub-agents", "vllm (s)", OURS, "change", "P99 of first tokens", "hits of all"]
    rows = []
    for rate, tokens, commit in FAMILY_LOADS:
        some = select(runs["agents"], workload="families", commit=commit, rate=rate, cache_tokens=tokens)
        hits = compare_policies(some, "hit_rate")
        share = f"{show_share(hits.theirs)} → {show_share(hits.ours)}"
        for sessions, who in (("with", "parents"), ("without", "strangers")):
            job = compare_policies(some, f"{who}_mean_job_s")
            load = f"{rate}/s, {show_tokens(tokens)}"
            jobs = f"{job.theirs:.0f}", f"{job.ours:.0f}", show_change(job)
            rows.append([load, sessions, *jobs, show_first(some, f"{who}_ttft_p99_s"), share])
    return head, rows


def make_family_engines(runs: Runs) -> Table:
    """Make a row a load and router: means over seeds of sessions with sub-agents, first tokens of those without."""
    head = [
        "sessions/s",
        "routing",
        "with sub-agents (s)",
        "without (s)",
        "their P99 of first tokens (s)",
        "hits of all",
    ]
    all_loads = select(runs["replicas"], workload="families", commit=FAMILY_ENGINES)
    rows = []
    for rate in ENGINES_RATES:
        for policy, routing, shown in FAMILY_ROUTING:
            some = [run for run in select(all_loads, rate=rate) if (run.policy, run.flags) == (policy, [routing])]
            means = [fmean(run.figures[figure] for run in some) for figure in FAMILY_FIGURES]
            hits = show_share(fmean(run.figures["hit_rate"] for run in some))
            rows.append([str(rate), shown, *(f"{mean:.0f}" for mean in means), hits])
    return head, rows


def compare_policies(runs: list[Run], figure: str) -> Comparison:
    return compare(list_stock(runs), list_stock(runs, OURS), figure)


def show_job(runs: list[Run]) -> list[str]:
    return [f"mean job {show_change(compare_policies(runs, 'mean_job_s'))}", show_first(runs)]


def show_first(runs: list[Run], figure: str = "ttft_p99_s") -> str:
    return show_times(compare_policies(runs, figure)).replace(" (", " times (")


def show_small(runs: Runs) -> list[str]:
    """Show the least and the most of all loads; of first tokens the slowest alone were kept."""
    rows = [(runs[file], workload, commits, also) for _, workload, file, commits, also in AGENTS if workload in SMALL]
    loads = [select(some, workload=workload, commit=commits, **also) for some, workload, commits, also in rows]
    jobs = sorted(compare_policies(load, "mean_job_s").ratio for load in loads)
    firsts = [compare_policies(load, "ttft_max_s") for load in loads]
    theirs, ours = (show_range([getattr(first, side) for first in firsts]) for side in ("theirs", "ours"))
    change = f"mean job {show_percent(jobs[0])} to {show_percent(jobs[-1])} %"
    return [f"{len(loads)} loads", change, f"slowest {ours} s, stock's {theirs} s"]


def show_range(seconds: list[float]) -> str:
    return f"{min(seconds):.1f} to {max(seconds):.1f}"
