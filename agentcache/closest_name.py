"""What a mistyped name was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches


def suggest(name: str, known: Iterable[str], renamed: Mapping[str, str] = {}) -> str:
    """Return "; did you mean X?" for the closest known name, or nothing where none is close.

    `renamed` has the new names of old ones, which may be closest too.
    """
    close = get_close_matches(name, [*known, *renamed], n=1)
    return f"; did you mean {renamed.get(close[0], close[0])}?" if close else ""
