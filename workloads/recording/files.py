"""The files of one recording: full ones beside FILE, and those of further engines, each with full ones of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from glob import escape
from itertools import count, takewhile
from pathlib import Path


def name_file(path: Path, rank: int) -> Path:
    """Return where the data-parallel engine `rank` records: engines side by side share no file."""
    return path.with_name(f"{path.stem}-rank{rank}{path.suffix}") if rank else path


def list_files(path: Path) -> list[Path]:
    """List FILE and those of further engines by their rank, the full ones of each in front of it, oldest first."""
    return [part for engine in _list_engines(path) for part in (*reversed([*_find_full(engine)]), engine)]


def find_first(path: Path) -> Path:
    """Return FILE, or, if the first engine had no request, the file of the next one that had any."""
    return next((engine for engine in _list_engines(path) if engine.exists()), path)


def _list_engines(path: Path) -> list[Path]:
    found = path.parent.glob(f"{escape(path.stem)}-rank*{escape(path.suffix)}")
    name = re.compile(f"{re.escape(path.stem)}-rank([1-9][0-9]*){re.escape(path.suffix)}")
    ranks = sorted(int(match[1]) for each in found if (match := name.fullmatch(each.name)))
    return [path, *(name_file(path, rank) for rank in ranks)]


def _find_full(path: Path) -> Iterator[Path]:
    """Find FILE.1, the latest of the full files, FILE.2 and so on."""
    return takewhile(Path.is_file, (path.with_name(f"{path.name}.{number}") for number in count(1)))
