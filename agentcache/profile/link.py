"""Measures the link between the GPU and the host's memory, where there is one, before an engine takes the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentcache.engine.vllm.base import VllmConfig, current_platform
from agentcache.engine.vllm.compat import installed_version
from agentcache.errors import InputError
from agentcache.policy.link_profile import LinkProfile, LinkSpeeds
from agentcache.profile.link_process import find_layout, run_link_process
from agentcache.profile.link_rows import LinkRow, fit_link, predict_s, write_rows


def print_link(console: Console, speeds: LinkSpeeds, rows: Sequence[LinkRow]) -> None:
    """Print the rows in gigabytes a second, each way, and what is fitted to them."""
    table = Table(title=f"GB/s, blocks of {rows[0].bytes:,} bytes", title_justify="left")
    for column in ("blocks", "fetch", "store", "both ways, each"):
        table.add_column(column, justify="right")
    for row in rows:
        rates = (f"{row.gb_s(seconds):.1f}" for seconds in (row.fetch_s, row.store_s, row.both_s))
        table.add_row(f"{row.blocks:,}", *rates)
    console.print(table)
    measured = {
        "fetch": (speeds.fetch, [row.fetch_s for row in rows]),
        "store": (speeds.store, [row.store_s for row in rows]),
    }
    for name, (speed, times) in measured.items():
        pairs = zip(rows, times, strict=True)
        off = max(abs(predict_s(speed, row) / seconds - 1) for row, seconds in pairs)
        console.print(
            f"{name}: {1e3 * speed.latency_s:.2f} ms and {speed.gb_s:.1f} GB/s, off by at most {100 * off:.0f} %"
        )
    console.print(f"both ways at once, each keeps {100 * speeds.both_share:.0f} % of that")


def measure_link(config: VllmConfig, rows_file: Path, console: Console) -> LinkProfile | None:
    """Measure it, print and write the rows, and return the profile's section; None, and print why, if there is none."""
    if not current_platform.is_cuda():
        console.print("host's memory: no link to measure, for the engine runs on no CUDA device")
        return None
    try:
        layout = find_layout(config)
        console.print("host's memory: measuring copies to the GPU and from it")
        rows = run_link_process(layout)
        write_rows(rows, rows_file)
        speeds = fit_link(rows)
    except InputError as error:
        console.print(f"host's memory: the link is not measured: {error}", style="red", markup=False)
        return None
    print_link(console, speeds, rows)
    return LinkProfile(
        source=f"agentcache profile on {current_platform.get_device_name()}, vLLM {installed_version()}, "
        f"{date.today()}, copies of {rows[0].blocks:,} to {rows[-1].blocks:,} blocks",
        pieces=layout.pieces,
        piece_bytes=layout.piece_bytes,
        speeds=speeds,
    )
