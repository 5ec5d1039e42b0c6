"""Writes the parts of pages that follow from the sources: the tables of metrics and GPUs, and the picture of imports.

.venv/bin/python benchmarks/page_parts.py

A table stands between `<!-- part: NAME -->` and `<!-- end -->`; a test compares pages and picture with the sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from import_picture import draw_imports
from prometheus_client.core import Metric
from tables import format_table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PICTURE = DOCS / "imports.svg"
MARKED = re.compile(r"(<!-- part: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
GIGA = 1e9


def make_metrics() -> str:
    """Make a row a metric, of what it says of itself."""
    # It loads vLLM's types.
    from agentcache.server.metrics import ReadingCollector

    return format_table(["metric", "type", "meaning"], [*map(describe_metric, ReadingCollector(None).collect())])


def describe_metric(metric: Metric) -> list[str]:
    suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
    return [f"`{metric.name}{suffix}`", metric.type, metric.documentation.rstrip(".")]


def make_gpus() -> str:
    """Make a row a GPU, of its data sheet."""
    gpus = json.loads((ROOT / "agentcache/policy/gpus.json").read_text(encoding="utf-8"))
    head = ["`--gpu`", "TFLOP/s", "memory (TB/s)", "GB", "PCIe (GB/s)"]
    rows = [
        [
            f"`{name}`",
            f"{gpu['flops_s'] / GIGA / 1000:,.0f}",
            f"{gpu['bandwidth_s'] / GIGA / 1000:g}",
            f"{gpu['memory_bytes'] / GIGA:.0f}",
            f"{gpu['pcie_s'] / GIGA:.0f}",
        ]
        for name, gpu in sorted(gpus.items(), key=lambda item: item[1]["flops_s"])
    ]
    return format_table(head, rows)


PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "metrics": ("metrics-reference.md", make_metrics),
    "gpus": ("plan.md", make_gpus),
}


def write_parts(page: str) -> str:
    """Return the page with its parts written anew. Raises KeyError for a part that is not made here."""
    return MARKED.sub(lambda found: f"{found[1]}\n{PARTS[found[2]][1]()}\n{found[3]}", page)


def main() -> None:
    for name, _ in PARTS.values():
        page = DOCS / name
        page.write_text(write_parts(page.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(draw_imports(), encoding="utf-8")


if __name__ == "__main__":
    main()
