"""How much the three parameters of the return function matter: the paper's hyper-parameter study, simulated.

python benchmarks/parameter_study.py --data longbench.jsonl --seeds 0 1 2 --out runs --plot runs/parameters.png

Llama-3.1-8B on an H20, the paper's cache, 50 LongBench sessions at 0.02 a second with short pauses. One parameter of
`asymcache` is changed at a time; a run whose folder holds a summary already is not run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from convert import convert
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from summaries import measure

RATE = 0.02
DISPERSION = 5
CONVERSATIONS = ("--jobs", "50", "--turns", "6", "--rate", str(RATE), "--dispersion", str(DISPERSION))
ENGINE = ("--model", "llama-3.1-8b", "--gpu", "h20", "--kv-tokens", "487744")
# The 99th percentile of the pauses: Gamma gaps with a CV of 0.25 have it at 1.67 times their mean.
P99_PAUSE_S = round(1.67 * DISPERSION / RATE)
# What the paper sets, and what it varies: the turning point's place and height, and how the slope changes there.
DEFAULTS = {"lifespan_s": P99_PAUSE_S, "tuning.reuse_probability": 0.5, "tuning.slope_ratio": 40}
VALUES: dict[str, tuple[float, ...]] = {
    "lifespan_s": (15, 60, 125, 250, P99_PAUSE_S, 835, 1670),
    "tuning.reuse_probability": (0.05, 0.1, 0.3, 0.5, 0.7, 0.9),
    "tuning.slope_ratio": (2, 10, 20, 40, 80, 160),
}
BASE = "lru"


@dataclass(frozen=True, slots=True)
class Point:
    """A setting and its means over the seeds: TTFT in seconds, share of prompt blocks that hit."""

    value: float
    ttft_s: float
    block_hit_rate: float


def list_settings() -> Iterator[dict[str, float]]:
    """Yield the defaults, and then each other value of each parameter with the others at their defaults."""
    yield dict(DEFAULTS)
    for knob, values in VALUES.items():
        yield from ({**DEFAULTS, knob: value} for value in values if value != DEFAULTS[knob])


def name_setting(setting: Mapping[str, float]) -> str:
    return "-".join(f"{value:g}" for value in setting.values())


def run_arm(setting: Mapping[str, float] | None, seed: int, out: Path) -> dict[str, Any]:
    """Return the figures of `asymcache` with a setting, or of BASE with None."""
    policy = BASE if setting is None else "asymcache"
    knobs = [] if setting is None else [f"{knob}={value:g}" for knob, value in setting.items()]
    words = ["simulate", f"recording:{out / f'seed-{seed}.jsonl'}", *ENGINE, "--policy", policy]
    for knob in knobs:
        words += ["--agentcache", knob]
    folder = out / (BASE if setting is None else name_setting(setting)) / f"seed-{seed}"
    figures: dict[str, Any] = measure(words, folder)[policy]
    return figures


def average(value: float, runs: Sequence[Mapping[str, Any]]) -> Point:
    return Point(value, mean(run["ttft_s"]["mean"] for run in runs), mean(run["block_hit_rate"] for run in runs))


def draw_panel(axes: Axes, knob: str, points: Sequence[Point], base: Point) -> None:
    """Draw TTFT over a parameter's values, each with its hit rate, beside LRU's."""
    places = range(len(points))
    axes.bar(places, [point.ttft_s for point in points], color="tab:blue", width=0.6, label="asymcache")
    label = f"LRU ({base.block_hit_rate:.1%} hits)"
    axes.axhline(base.ttft_s, color="tab:red", linestyle="--", label=label)
    for place, point in zip(places, points, strict=True):
        above = (place, point.ttft_s)
        axes.annotate(f"{point.block_hit_rate:.1%}", above, ha="center", va="bottom", color="tab:green", fontsize=8)
    names = [f"{point.value:g}" + ("*" if point.value == DEFAULTS[knob] else "") for point in points]
    axes.set_xticks(list(places), names)
    axes.set_xlabel(knob)
    axes.set_ylim(0, 1.2 * max(base.ttft_s, *(point.ttft_s for point in points)))


def draw(panels: Mapping[str, Sequence[Point]], base: Point, path: Path) -> None:
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    drawn = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (knob, points) in zip(drawn, panels.items(), strict=True):
        draw_panel(axes, knob, points, base)
    drawn[0].set_ylabel("mean TTFT (s); green: block hits")
    drawn[0].legend(fontsize=8, loc="upper right")
    figure.savefig(path, dpi=120)


def write_table(panels: Mapping[str, Sequence[Point]], base: Point) -> str:
    lines = ["| parameter | value | TTFT, mean (s) | LRU's, times | block hits (%) |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    rows = [("LRU", "", base), *((f"`{knob}`", f"{p.value:g}", p) for knob, points in panels.items() for p in points)]
    for knob, value, point in rows:
        ratio = base.ttft_s / point.ttft_s
        lines.append(f"| {knob} | {value} | {point.ttft_s:.2f} | {ratio:.2f} | {100 * point.block_hit_rate:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, metavar="FILE", help="LongBench's documents (docs/reproduce.md)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder a run is put in here")
    parser.add_argument("--plot", type=Path, required=True, metavar="FILE.png")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="runs side by side (default 2)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for seed in arguments.seeds:
        to = ("--seed", str(seed), "--out", str(arguments.out / f"seed-{seed}.jsonl"))
        convert(["conversation", arguments.data, *CONVERSATIONS, *to])
    arms = [(setting, seed) for setting in (None, *list_settings()) for seed in arguments.seeds]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        runs = pool.map(lambda arm: run_arm(arm[0], arm[1], arguments.out), arms)
        results = list(track(runs, "parameters", len(arms), console=Console(stderr=True)))
    by_name: dict[str, list[dict[str, Any]]] = {}
    for (setting, _), figures in zip(arms, results, strict=True):
        by_name.setdefault(BASE if setting is None else name_setting(setting), []).append(figures)
    panels = {
        knob: [average(value, by_name[name_setting({**DEFAULTS, knob: value})]) for value in values]
        for knob, values in VALUES.items()
    }
    base = average(0.0, by_name[BASE])
    draw(panels, base, arguments.plot)
    print(write_table(panels, base))  # noqa: T201


if __name__ == "__main__":
    main()
