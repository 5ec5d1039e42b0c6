"""What is fresh is copied for as long as the host's memory has room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agentcache.engine.tier.fresh_blocks import FreshBlocks


def test_what_found_no_room_is_not_copied_later() -> None:
    """By then it is fresh no more: the GPU's next victims are chosen in another way."""
    host: Any = SimpleNamespace(room=2, map=SimpleNamespace(holds=lambda key: key == "stored"))
    fresh = FreshBlocks(host, computed=None)  # type: ignore[arg-type]
    names = ("stored", "first", "under way", "second", "third")
    fresh.note_left([SimpleNamespace(block_hash=name) for name in names])  # type: ignore[misc]

    def choose() -> list[Any]:
        chosen: dict[Any, Any] = {}
        fresh.add_to(chosen, 9, ["under way"], lambda _: True)  # type: ignore[list-item]
        return list(chosen)

    assert choose() == ["first", "second"]
    host.room = 0
    assert choose() == []
    host.room = 2
    assert choose() == []
