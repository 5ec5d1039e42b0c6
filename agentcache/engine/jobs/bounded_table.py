"""Keeps what clients' requests have left, by name, in so many bytes at most."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

# Of an entry beside what it says of itself: its name, its place and its objects.
ENTRY_BYTES = 512
# Of each table.
MAX_BYTES = 64 * 2**20

Value = TypeVar("Value")


class BoundedTable(Generic[Value]):
    """At most so many entries by name; the oldest leave first. Clients decide how large each is, so bytes count too."""

    def __init__(self, max_entries: int, max_bytes: int = MAX_BYTES) -> None:
        self.num_bytes = 0
        """What all entries take, about."""
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def put(self, name: str, value: Value, num_bytes: int) -> None:
        """Add an entry whose value takes so many bytes, in place of one of that name; not if it is too large."""
        self.pop(name)
        self._entries[name] = value, num_bytes + ENTRY_BYTES
        self.num_bytes += num_bytes + ENTRY_BYTES
        while self.num_bytes > self._max_bytes or len(self) > self._max_entries:
            self.pop(next(iter(self._entries)))

    def get(self, name: str) -> Value | None:
        """Return an entry's value, None if there is none."""
        return entry[0] if (entry := self._entries.get(name)) is not None else None

    def pop(self, name: str) -> Value | None:
        """Take out an entry and return its value, None if there is none."""
        if (entry := self._entries.pop(name, None)) is None:
            return None
        self.num_bytes -= entry[1]
        return entry[0]

    def change_all(self, change: Callable[[Value], Value]) -> None:
        """Replace each value by what `change` makes of it, which takes no more bytes."""
        for name, (value, num_bytes) in self._entries.items():
            self._entries[name] = change(value), num_bytes

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
        self.num_bytes = 0


def count_text_bytes(texts: Collection[str]) -> int:
    """Count the bytes that a list of texts takes, at most."""
    return sum(64 + 4 * len(text) for text in texts)
