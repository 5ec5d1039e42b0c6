"""Copies blocks between the GPU and the CPU cache, on streams of our own beside the steps.

What must happen before what, and who sees to it:

- A store waits for the step that computed its blocks. `mark_step` is called before the step is launched with which
  the store begins, and the store waits for all steps launched by then. The scheduler stores nothing that the step
  itself computes (`Tier.begin_copies` refuses it).
- A load waits for those steps too. Under async scheduling the step before may still write to blocks of a request that
  was preempted or aborted, and they are free already: to be fetched into, or to be stored as what they will be.
- A load ends before the forward that reads it: the scheduler admits a request when all workers have reported its load.
- A block of the CPU cache is not written over while a load reads it: the scheduler holds it until the load is reported.
- A block of the GPU may be taken for other tokens while a store reads it. The scheduler notes that, and throws the
  copy away when it is reported.
- A copy that failed may have begun in part, and is reported when that has ended: then its blocks are used again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

import torch

from agentcache.engine.vllm.base import current_platform, init_logger
from agentcache.engine.vllm.host_memory import Pieces
from agentcache.engine.vllm.workers import (
    CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
    KVConnectorMetadata,
    build_params,
    copy_blocks,
)
from agentcache.errors import ServerError

logger = init_logger("vllm.agentcache")


def tell_failure(error: Exception) -> None:
    """Tell the log, once for each error, that a copy failed, whichever rank made it."""
    logger.warning_once(
        "--kv-offloading-size: a copy between the GPU and the CPU cache failed: %s",
        f"{type(error).__name__}: {error}",
        scope="process",
    )


def end_engine(what: str) -> ServerError:
    """Return the error of a copy after which the engine cannot go on."""
    return ServerError(f"--kv-offloading-size: a copy between the GPU and the CPU cache {what}; restart the engine")


@dataclass
class CopyOrders(KVConnectorMetadata):
    """Asks the workers for the copies of a step: one to the GPU, one from it, or neither.

    Each has a number of its own, -1 where there is none. The fields have the names of vLLM's
    `SimpleCPUOffloadMetadata`, so a simulation reads either.
    """

    load_event: int = -1
    load_cpu_blocks: list[int] = field(default_factory=list)
    load_gpu_blocks: list[int] = field(default_factory=list)
    store_event: int = -1
    store_gpu_blocks: list[int] = field(default_factory=list)
    store_cpu_blocks: list[int] = field(default_factory=list)


class Ended(NamedTuple):
    """A copy that has ended, and the seconds that it took; None: it failed."""

    number: int
    seconds: float | None


class _Begun(NamedTuple):
    number: int
    begin: torch.Event
    end: torch.Event
    has_failed: bool


class _Way:
    """Copies in one direction, one behind the other. Begun in one thread, and taken as ended in another."""

    def __init__(self, sources: Pieces, targets: Pieces, *, source_order: int) -> None:
        # Steps go first where both want the GPU.
        low, _ = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
        self.stream = torch.cuda.Stream(priority=low)  # type: ignore[no-untyped-call]
        self._params = build_params(sources, targets, self.stream, src_access_order=source_order)
        self._begun: deque[_Begun] = deque()

    def begin(self, number: int, sources: list[int], targets: list[int], steps_before: torch.Event) -> None:
        """Begin a copy that waits for these steps. An error on the stream itself is raised."""
        begin, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        has_failed = False
        try:
            self.stream.wait_event(steps_before)
            begin.record(self.stream)
            copy_blocks(sources, targets, self._params)
        except Exception as error:
            tell_failure(error)
            has_failed = True
        # Of a copy that failed as well: what of it has begun writes until then.
        end.record(self.stream)
        self._begun.append(_Begun(number, begin, end, has_failed))

    def take_ended(self) -> Iterator[Ended]:
        """Yield the copies that have ended, in their order."""
        while self._begun and self._begun[0].end.query():
            copy = self._begun.popleft()
            seconds = None if copy.has_failed else copy.begin.elapsed_time(copy.end) / 1e3
            yield Ended(copy.number, seconds)


class StreamCopier:
    """Has a thread begin the copies: that takes milliseconds, in which the engine launches its step."""

    def __init__(self, on_gpu: Pieces, on_host: Pieces) -> None:
        self.on_gpu = on_gpu
        self.on_host = on_host
        # What is stored may be written to until its turn on the stream; what is loaded was stored long before.
        self._store = _Way(on_gpu, on_host, source_order=CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        self._load = _Way(on_host, on_gpu, source_order=CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
        self._steps_before: torch.Event | None = None
        self._under_way = 0
        self._asked: SimpleQueue[tuple[_Way, int, list[int], list[int], torch.Event] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def mark_step(self) -> None:
        """Mark on the step's stream what has been launched so far."""
        self._steps_before = torch.Event()
        self._steps_before.record(torch.cuda.current_stream())

    def begin(self, orders: CopyOrders) -> None:
        """Have the thread begin the step's copies."""
        if orders.load_cpu_blocks:
            self._ask(self._load, orders.load_event, orders.load_cpu_blocks, orders.load_gpu_blocks)
        if orders.store_gpu_blocks:
            self._ask(self._store, orders.store_event, orders.store_gpu_blocks, orders.store_cpu_blocks)

    def _ask(self, way: _Way, number: int, sources: list[int], targets: list[int]) -> None:
        assert self._steps_before is not None
        self._under_way += 1
        self._asked.put((way, number, sources, targets, self._steps_before))

    def _run(self) -> None:
        """Begin copies until there is None to begin. An error on a stream itself ends the thread."""
        current_platform.set_device(next(iter(self.on_gpu.values())).device)
        while (asked := self._asked.get()) is not None:
            way, number, sources, targets, steps_before = asked
            way.begin(number, sources, targets, steps_before)

    def take_ended(self) -> list[Ended]:
        """Return the copies that have ended since the last call.

        Raises:
            ServerError: The thread is dead, so that copies under way never end.
        """
        is_alive = self._thread.is_alive()
        ended = [*self._load.take_ended(), *self._store.take_ended()]
        self._under_way -= len(ended)
        if self._under_way and not is_alive:
            raise end_engine("failed on its stream, and the copying thread is dead (its error is above in the log)")
        return ended

    def close(self) -> None:
        """End the thread when it has begun what it was asked for, and unpin the memory when all has ended."""
        if not self._thread.is_alive():
            return
        self._asked.put(None)
        self._thread.join()
        for way in (self._load, self._store):
            way.stream.synchronize()
        for piece in self.on_host.values():
            if piece.is_pinned():
                torch.cuda.cudart().cudaHostUnregister(piece.data_ptr())  # type: ignore[no-untyped-call]


def assign_blocks(sources: Pieces, read: list[int], targets: Pieces, written: list[int]) -> None:
    """Copy blocks within this process's memory."""
    for name, source in sources.items():
        targets[name][written] = source[read]


class PlainCopier:
    """For vLLM's CPU backend, where both caches are in the same memory and a copy is made when it is asked for."""

    def __init__(self, on_gpu: Pieces, on_host: Pieces) -> None:
        self.on_gpu = on_gpu
        self.on_host = on_host
        self._ended: list[Ended] = []

    def mark_step(self) -> None:
        """Do nothing: a step has ended when the next one begins."""

    def begin(self, orders: CopyOrders) -> None:
        """Make the copies."""
        if orders.load_cpu_blocks:
            copy = self.on_host, orders.load_cpu_blocks, self.on_gpu, orders.load_gpu_blocks
            self._ended.append(Ended(orders.load_event, self._time(*copy)))
        if orders.store_gpu_blocks:
            copy = self.on_gpu, orders.store_gpu_blocks, self.on_host, orders.store_cpu_blocks
            self._ended.append(Ended(orders.store_event, self._time(*copy)))

    def _time(self, sources: Pieces, read: list[int], targets: Pieces, written: list[int]) -> float | None:
        began_s = time.perf_counter()
        try:
            assign_blocks(sources, read, targets, written)
        except Exception as error:
            tell_failure(error)
            return None
        return time.perf_counter() - began_s

    def take_ended(self) -> list[Ended]:
        """Return the copies that were made since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Do nothing: there is no thread, and nothing is pinned."""
