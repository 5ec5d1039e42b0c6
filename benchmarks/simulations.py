"""The simulated tables of coding sessions and the paper: sets of `agentcache simulate`, run and put side by side.

python benchmarks/simulations.py claude-code --data FOLDER_OF_TRACES --out DIR
python benchmarks/simulations.py lifespan-window --data FOLDER_OF_TRACES --out DIR
python benchmarks/simulations.py sensitivity --data FOLDER_OF_TRACES --out DIR
python benchmarks/simulations.py end-to-end --data FILE_OF_DOCUMENTS [FILE ...] --out DIR
python benchmarks/simulations.py end-to-end-long ...        # slower arrivals, for longer documents
python benchmarks/simulations.py end-to-end-paper ...       # at one rate of the paper

With --by-load: a table a figure, in which a load has a row and a policy a column, and a plot of TTFT.

A command whose folder holds a summary already is not run again, so a table that broke off goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from convert import convert
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from summaries import measure

CLAUDE_CODE_SIZES = (200_000, 400_000, 800_000)
CLAUDE_CODE = ("--jobs", "32", "--max-context", "65536")
LLAMA_H200 = ("--model", "llama-3.1-8b", "--gpu", "h200", "--seed", "0")
# About the paper's 300 requests.
CONVERSATION = ("--jobs", "50", "--turns", "6", "--seed", "0")
# Of the paper's Table 1: GPUs and tokens of cache for each model.
MODELS = {"llama-3.1-8b": (1, 487_744), "llama-3.1-70b": (4, 505_152)}
DISPERSIONS = {"low": 5, "high": 10}
# Sessions a second, from a GPU that is mostly idle to one that falls behind: for prompts of 17,000 tokens, and about
# twice as long. "paper": its 0.02 a second, taken as requests, at which it gives most figures.
SWEEPS: dict[str, dict[str, tuple[float, ...]]] = {
    "end-to-end": {
        "llama-3.1-8b": (0.01, 0.02, 0.03, 0.05, 0.07),
        "llama-3.1-70b": (0.005, 0.01, 0.015, 0.025, 0.04),
    },
    "end-to-end-long": {
        "llama-3.1-8b": (0.0035, 0.007, 0.015, 0.025),
        "llama-3.1-70b": (0.0035, 0.007, 0.01, 0.015),
    },
    "end-to-end-paper": {"llama-3.1-8b": (0.0035,), "llama-3.1-70b": (0.0035,)},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One command, and what its rows are labelled with. `suffix` is put behind its policies' names.

    It takes the recording that `converted`, arguments of `convert.py`, make.
    """

    labels: Mapping[str, object]
    converted: tuple[str, ...]
    arguments: tuple[str, ...]
    suffix: str = ""

    @property
    def folder(self) -> str:
        words = [*map(str, self.labels.values()), self.suffix, *self.policies]
        return "-".join("".join(c if c.isalnum() else "." for c in word) for word in words if word)

    @property
    def policies(self) -> list[str]:
        return [value for flag, value in zip(self.arguments, self.arguments[1:], strict=False) if flag == "--policy"]


def _policies(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--policy", name))


def _list_sessions(data: Sequence[str]) -> tuple[str, ...]:
    return ("agent_traces", data[0], *CLAUDE_CODE)


def list_claude_code(data: Sequence[str]) -> Iterator[Case]:
    for tokens in CLAUDE_CODE_SIZES:
        labels = {"cache": f"{tokens // 1000}k"}
        run = (*LLAMA_H200, "--kv-tokens", str(tokens))
        sessions = _list_sessions(data)
        off, on = (("--agentcache", f"segments.enabled={value}") for value in ("false", "true"))
        policies = _policies("lru", "max-score", "pensieve", "asymcache", "belady-cost")
        yield Case(labels, sessions, (*run, *policies))
        yield Case(labels, sessions, (*run, *_policies("asymcache", "pensieve"), *off), " −segments")
        yield Case(labels, sessions, (*run, *_policies("lru", "belady-cost"), *on), " +segments")


def list_lifespan_window(data: Sequence[str]) -> Iterator[Case]:
    run, sessions = (*LLAMA_H200, "--kv-tokens", "400000", *_policies("asymcache")), _list_sessions(data)
    # Within 1e6 λ hardly moves; the default lets it go wherever the window's mean says.
    for limit in ("1e6", "1e300"):
        for window in (10, 100, 1_000, 10_000):
            knobs = ("--agentcache", f"tuning.lifespan_window={window}", "--agentcache", f"tuning.lambda_limit={limit}")
            yield Case({"λ limit": limit, "window": window}, sessions, (*run, *knobs))


def list_sensitivity(data: Sequence[str]) -> Iterator[Case]:
    values: dict[str, tuple[float, ...]] = {
        "lifespan_s": (15, 60, 240),
        "tuning.reuse_probability": (0.1, 0.5, 0.9),
        "tuning.slope_ratio": (2, 40, 100),
    }
    for knob, settings in values.items():
        for value in settings:
            run = (*LLAMA_H200, "--kv-tokens", "400000", *_policies("asymcache"), "--agentcache", f"{knob}={value}")
            yield Case({"knob": knob, "value": value}, _list_sessions(data), run)


def list_end_to_end(data: Sequence[str], rates: Mapping[str, Sequence[float]]) -> Iterator[Case]:
    for path, (model, (gpus, tokens)), (dispersion, ratio) in product(data, MODELS.items(), DISPERSIONS.items()):
        for rate in rates[model]:
            labels = {"data": Path(path).stem, "model": model, "dispersion": dispersion, "sessions/s": rate}
            target = ("--model", model, "--gpu", "h20", "--tensor-parallel-size", str(gpus))
            run = (*target, "--kv-tokens", str(tokens))
            load = ("conversation", path, "--rate", str(rate), "--dispersion", str(ratio), *CONVERSATION)
            yield Case(labels, load, (*run, *_policies("lru", "max-score", "pensieve", "asymcache")))
            # The 99th percentile of Gamma gaps with CV 0.25 is 1.67 times their mean.
            lifespan = ("--agentcache", f"lifespan_s={1.67 * ratio / rate:.0f}")
            yield Case(labels, load, (*run, *_policies("asymcache"), *lifespan), " L=P99")
            # With less load there are never as many decodes that chunks would shrink.
            if rate in rates[model][-2:]:
                chunking = ("--agentcache", "chunking.enabled=false")
                yield Case(labels, load, (*run, *_policies("asymcache"), *chunking), " −chunking")


TABLES: dict[str, Callable[[Sequence[str]], Iterator[Case]]] = {
    "claude-code": list_claude_code,
    "lifespan-window": list_lifespan_window,
    "sensitivity": list_sensitivity,
    **{name: partial(list_end_to_end, rates=rates) for name, rates in SWEEPS.items()},
}
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "token hits (%)": lambda one: f"{100 * one['token_hit_rate']:.1f}",
    "block hits (%)": lambda one: f"{100 * one['block_hit_rate']:.1f}",
    "request hits (%)": lambda one: f"{100 * one['request_hit_rate']:.1f}",
    "recomputed tokens": lambda one: f"{one['recomputed_tokens']:,}",
    "prefill (s)": lambda one: f"{one['prefill_s']:.0f}",
    "TTFT mean (s)": lambda one: f"{one['ttft_s']['mean']:.2f}",
    "TPOT mean (ms)": lambda one: f"{1000 * one['tpot_s']['mean']:.1f}",
    "job mean (s)": lambda one: f"{one['job_latency_s']['mean']:.1f}",
    "job P90 (s)": lambda one: f"{one['job_latency_s']['p90']:.1f}",
}

# The command with one more policy.
CLAIRVOYANT = Path(__file__).with_name("clairvoyant.py")

# What --by-load shows.
BY_LOAD = ("TTFT mean (s)", "TPOT mean (ms)", "block hits (%)", "request hits (%)")
LINES = {
    "pensieve": ("^", "tab:green"),
    "asymcache": ("s", "tab:blue"),
    "asymcache L=P99": ("D", "tab:red"),
}


def run_case(case: Case, out: Path) -> dict[str, Any]:
    """The figures of each policy. Raises RuntimeError with what the command said if it failed."""
    recording = out / f"{case.folder}.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    convert([*case.converted, "--out", str(recording)])
    program = (str(CLAIRVOYANT),) if "belady-cost" in case.policies else ("-m", "agentcache")
    return measure(["simulate", f"recording:{recording}", *case.arguments], out / case.folder, program=program)


def write_table(cases: Sequence[Case], results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown. The last column is LRU's mean TTFT over the row's, where both have the same labels."""
    head = [*cases[0].labels, "policy", *COLUMNS, "TTFT: lru ÷ this"]
    rows = []
    lru_s: dict[tuple[str, ...], float] = {}
    for case, result in zip(cases, results, strict=True):
        labels = tuple(map(str, case.labels.values()))
        for policy, figures in result.items():
            ttft_s = figures["ttft_s"]["mean"]
            if policy + case.suffix == "lru":
                lru_s[labels] = ttft_s
            ratio = f"{lru_s[labels] / ttft_s:.2f}" if labels in lru_s else "–"
            rows.append([*labels, policy + case.suffix, *(cell(figures) for cell in COLUMNS.values()), ratio])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def gather_loads(cases: Sequence[Case], results: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    """The figures of each policy under each load, by the load's labels."""
    loads: dict[tuple[str, ...], dict[str, Any]] = {}
    for case, result in zip(cases, results, strict=True):
        policies = loads.setdefault(tuple(map(str, case.labels.values())), {})
        policies.update({policy + case.suffix: figures for policy, figures in result.items()})
    return loads


def write_grids(labels: Sequence[str], loads: Mapping[tuple[str, ...], Mapping[str, Any]]) -> str:
    """Markdown, a table for each of BY_LOAD."""
    policies = list(dict.fromkeys(policy for load in loads.values() for policy in load))
    head = [*labels, *policies]
    tables = []
    for name in BY_LOAD:
        rows = [
            [*load, *(COLUMNS[name](figures[policy]) if policy in figures else "" for policy in policies)]
            for load, figures in loads.items()
        ]
        lines = [head, ["---"] * len(labels) + ["---:"] * len(policies), *rows]
        tables.append(f"{name}\n\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines))
    return "\n\n".join(tables)


def plot_ttft(loads: Mapping[tuple[str, ...], Mapping[str, Any]], path: Path) -> None:
    """Mean TTFT over LRU's by the last label, the rate; a panel for all that share the others, a line a policy."""
    panels = list(dict.fromkeys(load[:-1] for load in loads))
    figure = Figure(figsize=(3.4 * len(panels), 3.4), layout="constrained")
    drawn = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, panel in zip(drawn, panels, strict=True):
        points = {float(load[-1]): figures for load, figures in loads.items() if load[:-1] == panel}
        for policy, (marker, colour) in LINES.items():
            shares = [one[policy]["ttft_s"]["mean"] / one["lru"]["ttft_s"]["mean"] for one in points.values()]
            axes.plot(list(points), shares, marker=marker, color=colour, label=policy)
        axes.axhline(1, color="tab:gray")
        axes.set(title="\n".join([panel[0], ", ".join(panel[1:])]), xlabel="sessions/s")
        axes.grid(alpha=0.3)
    drawn[0].set_ylabel("mean TTFT, share of LRU's")
    drawn[0].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--data", nargs="+", required=True, metavar="PATH")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="one folder a command is put in here")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="commands side by side (default 2)")
    parser.add_argument("--by-load", action="store_true", help="tables with a column a policy, and a plot of TTFT")
    arguments = parser.parse_args()
    cases = list(TABLES[arguments.table](arguments.data))
    with ThreadPoolExecutor(arguments.at_once) as pool:
        runs = pool.map(lambda case: run_case(case, arguments.out), cases)
        results = list(track(runs, arguments.table, len(cases), console=Console(stderr=True)))
    table = write_table(cases, results)
    if arguments.by_load:
        loads = gather_loads(cases, results)
        table = write_grids(list(cases[0].labels), loads)
        plot_ttft(loads, arguments.out / f"{arguments.table}.png")
    (arguments.out / f"{arguments.table}.md").write_text(table + "\n")
    print(table)  # noqa: T201


if __name__ == "__main__":
    main()
