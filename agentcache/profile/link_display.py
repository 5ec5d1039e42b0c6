"""What the user sees of the link between the GPU and the host's memory."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from agentcache.profile.link_fit import FittedLink, predict_s


def print_link(console: Console, link: FittedLink) -> None:
    """Print the rows in gigabytes a second, each way, and what is fitted to them."""
    table = Table(title=f"host's memory: GB/s, blocks of {link.rows[0].bytes:,} bytes", title_justify="left")
    for column in ("blocks", "fetch", "store", "both ways, each", "beside products", "products slower"):
        table.add_column(column, justify="right")
    for row in link.rows:
        rates = (f"{row.gb_s(seconds):.1f}" for seconds in (row.fetch_s, row.store_s, row.both_s, row.beside_s))
        table.add_row(f"{row.blocks:,}", *rates, f"{row.slowdown:.2f} times")
    console.print(table)
    fetch, store = link.speeds.fetch, link.speeds.store
    measured = {"fetch": (fetch, [row.fetch_s for row in link.rows]), "store": (store, [r.store_s for r in link.rows])}
    for name, (speed, times) in measured.items():
        pairs = zip(link.rows, times, strict=True)
        off = max(abs(predict_s(speed, row) / seconds - 1) for row, seconds in pairs)
        console.print(
            f"{name}: {1e3 * speed.latency_s:.2f} ms and {speed.gb_s:.1f} GB/s, off by at most {100 * off:.0f} %"
        )
    console.print(f"both ways at once, each keeps {100 * link.speeds.both_share:.0f} % of that")
