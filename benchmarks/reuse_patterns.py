"""Where hits end in a prompt and how soon blocks are used again, of recordings: the AsymCache paper's two such figures.

python benchmarks/reuse_patterns.py "low dispersion=low.jsonl" "high dispersion=high.jsonl" --out reuse.png

Recordings come from `agentcache serve --record FILE`, or from a simulation: `agentcache simulate ... --policy vllm
--agentcache record.file=FILE --agentcache tuning.record_block_tokens=16`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workloads.recording.line import Line
from workloads.recording.reader import Recording, read_recording

PLACES = np.linspace(0.0, 1.0, 21)
SHARES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Reuse:
    """Of one recording: where hits end, as shares of their prompts, and how long blocks wait for their next use.

    `possible` are hits in a cache without end, `real` those in the cache of the recording. Waits are in seconds.
    `once` is the share of blocks that were used once.
    """

    possible: list[float]
    real: list[float]
    waits_s: list[float]
    once: float


def find_reuse(recording: Recording) -> Reuse:
    """Find the hits of each request among what came before it. A reply's blocks are used when it ends."""
    used_at: dict[int, float] = {}
    waits: list[float] = []
    possible, real = [], []
    again: set[int] = set()
    for now_ms, ids, line in _list_uses(recording.requests):
        if line is not None:
            seen = sum(1 for _ in takewhile(used_at.__contains__, ids))
            tokens = min(seen * recording.header.block_tokens, line.input_length)
            possible += [tokens / line.input_length] if tokens else []
            real += [line.cached_length / line.input_length] if line.cached_length else []
        for block in ids:
            if block in used_at:
                again.add(block)
                waits.append((now_ms - used_at[block]) / 1000)
            used_at[block] = now_ms
    return Reuse(possible, real, waits, 1 - len(again) / len(used_at))


def _list_uses(lines: Iterable[Line]) -> Iterator[tuple[float, Sequence[int], Line | None]]:
    """List times with the blocks that are used then, in order: of prompts, with their request, and of replies."""
    uses: list[tuple[float, Sequence[int], Line | None]] = []
    for line in lines:
        uses.append((line.timestamp, line.hash_ids, line))
        if line.reply_ids:
            uses.append((line.timestamp + line.latency_ms, line.reply_ids, None))
    return iter(sorted(uses, key=lambda use: use[0]))


def draw_positions(axes: Axes, recordings: Mapping[str, Reuse]) -> None:
    for number, (name, reuse) in enumerate(recordings.items()):
        for hits, style, label in ((reuse.possible, ":", None), (reuse.real, "-", name)):
            density, _ = np.histogram(hits, bins=PLACES, density=True)
            axes.stairs(density, PLACES, color=f"C{number}", linestyle=style, label=label)
    axes.set_xlabel("where the hit ends, as a share of the prompt (dotted: in a cache without end)")
    axes.set_ylabel("density over requests with a hit")
    axes.legend(fontsize=8)


def draw_waits(axes: Axes, recordings: Mapping[str, Reuse]) -> None:
    for name, reuse in recordings.items():
        waits = np.sort(reuse.waits_s)
        axes.step(waits, np.arange(1, len(waits) + 1) / len(waits), label=name)
    axes.set_xlabel("seconds from one use of a block to the next")
    axes.set_ylabel("share of the uses")
    axes.set_xscale("symlog", linthresh=1)
    axes.legend(fontsize=8)


def write_table(recordings: Mapping[str, Reuse]) -> Iterator[str]:
    yield (
        "| recording | requests with a hit: possible, real | "
        + " | ".join(f"wait, P{share} (s)" for share in SHARES)
        + " | blocks used once (%) |"
    )
    yield "| --- |" + " ---: |" * (len(SHARES) + 2)
    for name, reuse in recordings.items():
        waits = [f"{wait:.1f}" for wait in np.percentile(reuse.waits_s, SHARES)]
        yield f"| {name} | {len(reuse.possible)}, {len(reuse.real)} | {' | '.join(waits)} | {100 * reuse.once:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recordings", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png")
    options = parser.parse_args()
    named = [text.partition("=") for text in options.recordings]
    reuse = {name: find_reuse(read_recording(Path(file))) for name, _, file in named}
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_positions(left, reuse)
    draw_waits(right, reuse)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.out, dpi=130)
    sys.stdout.write("\n".join(write_table(reuse)) + "\n")


if __name__ == "__main__":
    main()
