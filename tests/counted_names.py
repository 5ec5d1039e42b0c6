"""Names that count how often they are compared: what looks through a whole table compares each of its names."""

from __future__ import annotations


class CountedName(str):
    """Set `comparisons` to 0 first."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return super().__eq__(other)

    __hash__ = str.__hash__
