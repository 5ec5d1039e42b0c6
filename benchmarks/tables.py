"""Writes the tables of README.md and pages of docs/ from results/*.jsonl.

python benchmarks/tables.py

A table stands on one of `PAGES` between `<!-- table: NAME -->` and `<!-- end -->`, and is made by the function of
`TABLES`. A run more is a line more in its file (`add_runs.py`): nothing in a table is typed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import first_table
import load_tables
import other_tables
from result_lines import Run, read_runs

ROOT = Path(__file__).parents[1]
NAMES = ("README.md", "docs/results.md", "docs/results/four-gpus.md", "docs/families.md")
PAGES = tuple(ROOT / name for name in NAMES)
TABLES = {
    "first": first_table.make_first,
    "families": first_table.make_families,
    "family-engines": first_table.make_family_engines,
    "bfcl": load_tables.make_bfcl,
    "bfcl-gpu": load_tables.make_bfcl_gpu,
    "flags": load_tables.make_flags,
    "loops": load_tables.make_loops,
    "loops-single": load_tables.make_single_loops,
    "agents": load_tables.make_agents,
    "models": other_tables.make_models,
    "engines": other_tables.make_engines,
    "paper": other_tables.make_paper,
    "four-gpus": other_tables.make_four_gpus,
    "programs": other_tables.make_programs,
    "unfair": other_tables.make_unfair,
    "steps": other_tables.make_steps,
    "error": other_tables.make_error,
}
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns whose cells all begin with a figure are aligned to the right. Raises ValueError for a ragged row."""
    if ragged := [row for row in rows if len(row) != len(head)]:
        raise ValueError(f"not {len(head)} cells: {ragged[0]}")
    right = [all(re.match(r"[−+\d–]", row[column]) for row in rows) for column in range(len(head))]
    ruler = ["---:" if flag else "---" for flag in right]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ruler, *rows))


def write_tables(page: str, runs: Mapping[str, Sequence[Run]]) -> str:
    """Return the page with its tables written anew. Raises KeyError for a table that is not made here."""

    def write(found: re.Match[str]) -> str:
        return f"{found[1]}\n{format_table(*TABLES[found[2]](runs))}\n{found[3]}"

    return MARKED.sub(write, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    runs = read_runs(parser.parse_args().results)
    for page in PAGES:
        page.write_text(write_tables(page.read_text(), runs))


if __name__ == "__main__":
    main()
