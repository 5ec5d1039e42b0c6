"""Draws which package imports which, as SVG: whatever imports stands above, and lines go down.

Of imports that follow from others no line is drawn: where a imports b, and b imports c, none from a to c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
ENGINE = "agentcache.engine"
WIDTH, BOX_HEIGHT, ROW_HEIGHT, LETTER, MARGIN = 640, 30, 62, 7.6, 20

IMPORT = re.compile(r"^ *(?:from|import) ([a-z_.]+)(?: import ([\w, ]+))?", re.MULTILINE)
Imports = Mapping[str, frozenset[str]]


def list_modules(package: str) -> Iterator[Path]:
    path = ROOT / package.replace(".", "/")
    return path.rglob("*.py") if path.is_dir() else iter([path.with_suffix(".py")])


@cache
def find_imports(package: str) -> frozenset[str]:
    """Find the modules that a package imports, at the top or within a function."""
    texts = (path.read_text(encoding="utf-8") for path in list_modules(package))
    found = [match for text in texts for match in IMPORT.findall(text)]
    return frozenset(
        name for module, names in found for name in (module, *(f"{module}.{each}" for each in names.split(", ")))
    )


def list_packages(folder: str) -> list[str]:
    paths = (ROOT / folder.replace(".", "/")).iterdir()
    return sorted(f"{folder}.{path.name}" for path in paths if path.is_dir() and (path / "__init__.py").exists())


def map_imports(packages: list[str]) -> Imports:
    """Tell which of the packages each imports."""

    def imports(package: str, other: str) -> bool:
        return other != package and any(f"{module}.".startswith(f"{other}.") for module in find_imports(package))

    return {package: frozenset(other for other in packages if imports(package, other)) for package in packages}


def find_floors(imports: Imports) -> dict[str, int]:
    """Number the floors from above. Raises ValueError where packages import each other in a circle."""
    floors: dict[str, int] = {}
    while rest := [package for package in imports if package not in floors]:
        above = {package: [other for other in imports if package in imports[other]] for package in rest}
        ready = [package for package in rest if floors.keys() >= set(above[package])]
        if not ready:
            raise ValueError(f"a circle of imports: {', '.join(rest)}")
        floors |= {package: 1 + max((floors[other] for other in above[package]), default=-1) for package in ready}
    return floors


def reach(imports: Imports, package: str) -> set[str]:
    """Return what a package imports, and what that imports, and so on."""
    return set(imports[package]).union(*(reach(imports, other) for other in imports[package]))


def list_lines(imports: Imports) -> Iterator[tuple[str, str]]:
    for package, others in imports.items():
        beyond = set().union(*(reach(imports, other) for other in others))
        yield from ((package, other) for other in sorted(others - beyond))


def draw_imports() -> str:
    """Draw the packages, and below them the rooms of the engine."""
    tops = [*list_packages("agentcache"), "tool_runtime", "workloads"]
    upper, end = draw_floors("Packages", map_imports(tops), top=0)
    lower, end = draw_floors("The rooms of agentcache.engine", map_imports(list_packages(ENGINE)), top=end)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {end}" font-family="sans-serif" font-size="14">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{end}" fill="#fff"/>', *upper, *lower, "</svg>", ""])


def place(imports: Imports, top: int) -> dict[str, tuple[float, int]]:
    """Place one floor a row, each package as near as can be below those that import it: where its box begins, amid."""
    floors = find_floors(imports)
    lines = [*list_lines(imports)]
    places: dict[str, tuple[float, int]] = {}
    for floor in range(max(floors.values()) + 1):
        row = [package for package in imports if floors[package] == floor]
        wished = {package: [places[other][0] for other, below in lines if below == package] for package in row}
        row.sort(key=lambda package: fmean(wished[package] or [0]))
        y = top + 40 + floor * ROW_HEIGHT
        places |= {package: (WIDTH * (number + 0.5) / len(row), y) for number, package in enumerate(row)}
    return places


def draw_floors(title: str, imports: Imports, *, top: int) -> tuple[list[str], int]:
    """Draw packages and what each imports. Returns the picture's lines, and where it ends."""
    places = place(imports, top)
    drawn = [f'<text x="{MARGIN}" y="{top + 24}" font-weight="bold">{escape(title)}</text>']
    for package, other in list_lines(imports):
        (x1, y1), (x2, y2) = places[package], places[other]
        drawn.append(f'<path d="M{x1:.0f} {y1 + BOX_HEIGHT} L{x2:.0f} {y2}" stroke="#9ab" fill="none"/>')
    for package, (x, y) in places.items():
        width = LETTER * len(shorten(package)) + 20
        box = f'x="{x - width / 2:.0f}" y="{y}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="5"'
        drawn.append(f'<rect {box} fill="#eef3f8" stroke="#0a5a94"/>')
        drawn.append(f'<text x="{x:.0f}" y="{y + 20}" text-anchor="middle">{escape(shorten(package))}</text>')
    return drawn, max(y for _, y in places.values()) + BOX_HEIGHT + MARGIN


def shorten(package: str) -> str:
    return package.removeprefix(f"{ENGINE}.").removeprefix("agentcache.")
