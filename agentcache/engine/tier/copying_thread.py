"""vLLM's copying thread, which outlives a copy that cannot be begun, and measures the others."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import torch

from agentcache.engine.vllm.base import current_platform, init_logger
from agentcache.engine.vllm.offload import DmaCopyBackend, copy_blocks

logger = init_logger("vllm.agentcache")


def tell_failure(error: Exception) -> None:
    """Tell the log, once for each error, that a copy failed, whichever rank made it."""
    logger.warning_once(
        "--kv-offloading-size: a copy between the GPU and the CPU cache failed: %s",
        f"{type(error).__name__}: {error}",
        scope="process",
    )


class CopyingThread(DmaCopyBackend):
    """Copies as vLLM's does, by its functions. A copy's name is whether it is a store, and its number."""

    def __init__(self) -> None:
        super().__init__()
        # Before and behind each copy that was begun, on its stream.
        self._spans: dict[tuple[bool, int], tuple[torch.Event, torch.Event]] = {}

    @property
    def is_alive(self) -> bool:
        """Tell whether copies that are asked for will end."""
        return self._thread is not None and self._thread.is_alive()

    def take_seconds(self, is_store: bool, number: int) -> float | None:
        """Return how long a copy has taken that has ended, and forget it; None: it failed."""
        span = self._spans.pop((is_store, number), None)
        return None if span is None else span[0].elapsed_time(span[1]) / 1e3

    # vLLM's is static, and told to the thread by this name.
    def _copy_loop(  # type: ignore[override]
        self,
        queue: SimpleQueue[Any],
        device: torch.device,
        load_stream: torch.cuda.Stream,
        store_stream: torch.cuda.Stream,
    ) -> None:
        """Make copies until there is None to make. An error on the stream itself ends the thread."""
        current_platform.set_device(device)
        while (item := queue.get()) is not None:
            sources, targets, params, is_store, number, ended, step_before = item
            stream = store_stream if is_store else load_stream
            begin, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
            try:
                if step_before is not None:
                    stream.wait_event(step_before)
                begin.record(stream)
                copy_blocks(sources, targets, params)
            except Exception as error:
                tell_failure(error)
            else:
                self._spans[is_store, number] = begin, end
            # A copy that failed may have begun in part, and writes to its targets until then.
            end.record(stream)
            ended.append((number, end))
