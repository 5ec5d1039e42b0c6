"""Notes what is freed, and in which context."""

from __future__ import annotations

import pytest

from agentcache._evictor import FreeContext
from agentcache.engine.blocks.block_queue import BlockQueue


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[FreeContext, int]]:
    """What each call freed, and in which context."""
    calls: list[tuple[FreeContext, int]] = []
    append_n = BlockQueue.append_n

    def note(queue: BlockQueue, blocks: list[object]) -> None:
        if blocks:
            calls.append((queue.context, len(blocks)))
        append_n(queue, blocks)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockQueue, "append_n", note)
    return calls
