"""The files of one recording: full ones beside FILE, and those of further engines, each with full ones of its own."""

from __future__ import annotations

import re
from glob import escape
from pathlib import Path


def name_file(path: Path, rank: int) -> Path:
    """Return where the data-parallel engine `rank` records: engines side by side share no file."""
    return path.with_name(f"{path.stem}-rank{rank}{path.suffix}") if rank else path


def list_files(path: Path) -> list[Path]:
    """List FILE and those of further engines by their rank, the full ones of each in front of it, oldest first."""
    return [part for engine in _list_engines(path) for part in (*_find_full(engine), engine)]


def find_first(path: Path) -> Path:
    """Return FILE or, where the first engine had no request, the file of the next one that had any.

    An engine that was killed while its files moved on has left no FILE: its latest full file stands for it.
    """
    found = (part for engine in _list_engines(path) for part in (engine, *reversed(_find_full(engine))))
    return next((part for part in found if part.exists()), path)


def _list_engines(path: Path) -> list[Path]:
    name = re.compile(f"{re.escape(path.stem)}-rank([1-9][0-9]*){re.escape(path.suffix)}(\\.[1-9][0-9]*)?")
    found = path.parent.glob(f"{escape(path.stem)}-rank*")
    ranks = sorted({int(match[1]) for each in found if (match := name.fullmatch(each.name))})
    return [path, *(name_file(path, rank) for rank in ranks)]


def _find_full(path: Path) -> list[Path]:
    """Find the full files, oldest first: FILE.1 is the latest. A number is missing where an engine was killed."""
    name = re.compile(f"{re.escape(path.name)}\\.([1-9][0-9]*)")
    beside = filter(Path.is_file, path.parent.glob(f"{escape(path.name)}.*"))
    found = {int(match[1]): each for each in beside if (match := name.fullmatch(each.name))}
    return [found[number] for number in sorted(found, reverse=True)]
