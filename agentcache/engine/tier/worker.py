"""The copies themselves: vLLM's worker, which also reports fetches that no single request waits for."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import psutil  # type: ignore[import-untyped]
import torch

from agentcache.engine.start_cause import tell_cause
from agentcache.engine.tier.copying_thread import CopyingThread, tell_failure
from agentcache.engine.vllm.models import get_world_group
from agentcache.engine.vllm.offload import (
    KVConnectorHandshakeMetadata,
    KVConnectorWorkerMetadata,
    SimpleCPUOffloadMetadata,
    SimpleCPUOffloadWorker,
    SimpleCPUOffloadWorkerMetadata,
)
from agentcache.errors import InputError, ServerError


@dataclass
class TierMetadata(SimpleCPUOffloadMetadata):
    """What our scheduler asks for. Nothing that is still being computed is stored, so that copies need not wait."""


@dataclass
class HostBlocks(KVConnectorHandshakeMetadata):
    """Tells the scheduler how many blocks a worker has room for in the CPU cache."""

    count: int


@dataclass
class CopiesDone(SimpleCPUOffloadWorkerMetadata):
    """By a copy's number, at how many workers it has ended. vLLM's own metadata has the stores.

    `failed` are the numbers of those that failed at any worker, `seconds` has how long the others took, added up.
    """

    completed_loads: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    seconds: dict[int, float] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> CopiesDone:
        """Add up what two workers report."""
        assert isinstance(other, CopiesDone)
        return CopiesDone(
            dict(Counter(self.completed_store_events) + Counter(other.completed_store_events)),
            dict(Counter(self.completed_loads) + Counter(other.completed_loads)),
            self.failed | other.failed,
            {
                number: self.seconds.get(number, 0.0) + other.seconds.get(number, 0.0)
                for number in self.seconds.keys() | other.seconds.keys()
            },
        )


def _explain(error: str) -> str | None:
    """Say why there is no memory, and what to do, by what PyTorch or vLLM says; None for another error."""
    if "cudaHostRegister" in error:
        return f"cannot be pinned for the GPU ({error}): give less, or raise the limit of locked memory (ulimit -l)"
    if "DefaultCPUAllocator" in error:
        return "cannot be had: give less, or raise the limit of a process's memory (ulimit -v)"
    return None


class TierWorker(SimpleCPUOffloadWorker):
    """vLLM's own worker. Loads that are for a request are reported as vLLM does, others by their number."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._done = CopiesDone({})
        self._step_before: torch.Event | None = None

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the GPU's KV caches, and pin as much of the host's memory.

        Raises:
            InputError: The host does not have it, or does not let it be pinned.
        """
        try:
            self._check_free_memory()
            super().register_kv_caches(kv_caches)
        except RuntimeError as error:
            if (cause := _explain(str(error))) is None:
                raise
            self._refuse(cause, error)

    def _check_free_memory(self) -> None:
        """Refuse what is not free. The kernel would give it, and end some process once it is written to."""
        free = psutil.virtual_memory().available + psutil.swap_memory().free
        ranks = self.vllm_config.parallel_config.local_world_size
        if self.vllm_config.parallel_config.world_size > 1:
            # No rank takes its memory before all have looked.
            get_world_group().barrier()
        if self.cpu_capacity_bytes * ranks > free:
            each = f" for each of {ranks} ranks" if ranks > 1 else ""
            self._refuse(f"are wanted{each}, and {free / 2**30:.1f} GiB are free; give less", None)

    def _refuse(self, cause: str, error: RuntimeError | None) -> NoReturn:
        message = f"--kv-offloading-size: {self.cpu_capacity_bytes / 2**30:.1f} GiB of the host's memory {cause}"
        tell_cause(message)
        raise InputError(message) from error

    def _init_cpu_mode(
        self, unique_gpu_caches: dict[str, torch.Tensor], total_bytes_per_block: int, device: torch.device
    ) -> None:
        """Have the memory, and a copying thread of our own in the place of vLLM's, which has nothing to do yet."""
        super()._init_cpu_mode(unique_gpu_caches, total_bytes_per_block, device)
        assert self._backend is not None
        self._backend.shutdown()
        backend: Any = CopyingThread()
        backend.init(unique_gpu_caches, self.cpu_kv_caches, device, self.load_stream, self.store_stream)
        self._backend = backend

    def bind_connector_metadata(self, metadata: SimpleCPUOffloadMetadata) -> None:
        """Take the step's copies, before the step itself is launched.

        Raises:
            ServerError: A copy would leave the CPU cache: what copies blocks checks no bounds.
        """
        last = max(itertools.chain(metadata.load_cpu_blocks, metadata.store_cpu_blocks), default=0)
        if last >= self.num_cpu_blocks:
            self._end_engine(f"names block {last} of {self.num_cpu_blocks}")
        super().bind_connector_metadata(metadata)
        self._step_before = self._mark_step_before()

    def _mark_step_before(self) -> torch.Event | None:
        """Return an event that all steps launched so far precede.

        Under async scheduling the step before may still write to blocks of a request that was preempted or aborted, and
        they are free already: to be stored as what they will be, or to be fetched into.
        """
        event = torch.Event()
        event.record(torch.cuda.current_stream())
        return event

    def start_load_kv(self) -> None:
        """Begin the step's copies: all of them, where our scheduler asks for them."""
        metadata = self._connector_metadata
        if not isinstance(metadata, TierMetadata):
            super().start_load_kv()
            return
        if metadata.load_cpu_blocks:
            self._launch(metadata.load_cpu_blocks, metadata.load_gpu_blocks, metadata.load_event, is_store=False)
        if metadata.store_gpu_blocks:
            self._launch(metadata.store_gpu_blocks, metadata.store_cpu_blocks, metadata.store_event, is_store=True)

    def _launch(self, sources: list[int], targets: list[int], number: int, *, is_store: bool) -> None:
        assert self._backend is not None
        self._backend.launch_copy(
            sources,
            targets,
            is_store=is_store,
            event_idx=number,
            events_list=self._store_events if is_store else self._load_events,
            wait_event=self._step_before,
        )

    def wait_for_save(self) -> None:
        """Begin the step's stores where vLLM's own scheduler asks for them, behind the step that computes them."""
        if not isinstance(self._connector_metadata, TierMetadata):
            super().wait_for_save()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Report ended copies.

        Raises:
            ServerError: A copy failed that vLLM's scheduler takes for made when it has ended, or the copying thread is
                dead, so that copies under way never end.
        """
        loads, stores = set(self._pending_load_event_indices), set(self._pending_store_event_indices)
        sent, received = super().get_finished(finished_req_ids)
        of_requests: Mapping[int, list[str]] = (
            self._connector_metadata.load_event_to_reqs if self._connector_metadata is not None else {}
        )
        for number in sorted(loads - self._pending_load_event_indices):
            self._note_end(number, is_store=False)
            if number not in of_requests:
                self._done.completed_loads[number] = 1
        for number in sorted(stores - self._pending_store_event_indices):
            self._note_end(number, is_store=True)
        self._check_copying_thread()
        return sent, received

    def _note_end(self, number: int, *, is_store: bool) -> None:
        if (seconds := self._take_seconds(is_store, number)) is not None:
            self._done.seconds[number] = seconds
        elif isinstance(self._connector_metadata, TierMetadata):
            self._done.failed.add(number)
        else:
            self._end_engine("failed (its error is above in the log)")

    def _take_seconds(self, is_store: bool, number: int) -> float | None:
        assert isinstance(self._backend, CopyingThread)
        return self._backend.take_seconds(is_store, number)

    def _check_copying_thread(self) -> None:
        if not (self._pending_load_event_indices or self._pending_store_event_indices):
            return
        if isinstance(self._backend, CopyingThread) and not self._backend.is_alive:
            self._end_engine("failed on its stream, and the copying thread is dead (its error is above in the log)")

    @staticmethod
    def _end_engine(what: str) -> NoReturn:
        raise ServerError(f"--kv-offloading-size: a copy between the GPU and the CPU cache {what}; restart the engine")

    def build_connector_worker_meta(self) -> SimpleCPUOffloadWorkerMetadata | None:
        """Return the copies that ended since the last call."""
        done, self._done = self._done, CopiesDone({})
        done.completed_store_events, self._completed_store_events = self._completed_store_events, {}
        return done if done.completed_store_events or done.completed_loads else None


class _NoStream:
    def __init__(self, priority: int) -> None:
        pass

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, 0


class CpuTierWorker(TierWorker):
    """For vLLM's CPU backend, where both caches are in the same memory and a copy is done when it is asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Of each copy that was made and is not reported yet, by whether it is a store and its number.
        self._seconds: dict[tuple[bool, int], float] = {}

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the KV caches. vLLM's method makes streams, of which there are none here."""
        stream: Any = torch.cuda.Stream
        torch.cuda.Stream = _NoStream  # type: ignore[assignment,misc]
        try:
            super().register_kv_caches(kv_caches)
        finally:
            torch.cuda.Stream = stream  # type: ignore[misc]

    def _init_cpu_mode(
        self,
        unique_gpu_caches: dict[str, torch.Tensor],
        total_bytes_per_block: int,  # noqa: ARG002 (vLLM's signature)
        device: torch.device,  # noqa: ARG002
    ) -> None:
        self.cpu_kv_caches = {
            name: torch.zeros((self.num_cpu_blocks, *cache.shape[1:]), dtype=cache.dtype)
            for name, cache in unique_gpu_caches.items()
        }

    def _mark_step_before(self) -> None:
        """Mark nothing: a step has ended when the next one begins."""

    def start_load_kv(self) -> None:
        """Copy to the cache."""
        metadata = self._connector_metadata
        if metadata is not None and (sources := metadata.load_cpu_blocks):
            self._copy_timed(sources, metadata.load_gpu_blocks, metadata.load_event, is_store=False)
            self._load_hwm = metadata.load_event

    def wait_for_save(self) -> None:
        """Copy from the cache."""
        metadata = self._connector_metadata
        if metadata is not None and (sources := metadata.store_gpu_blocks):
            self._copy_timed(sources, metadata.store_cpu_blocks, metadata.store_event, is_store=True)
            self._store_hwm = metadata.store_event

    def _copy_timed(self, read: list[int], written: list[int], number: int, *, is_store: bool) -> None:
        caches = (self.gpu_kv_caches, self.cpu_kv_caches) if is_store else (self.cpu_kv_caches, self.gpu_kv_caches)
        began_s = time.perf_counter()
        try:
            self._copy(caches[0], read, caches[1], written)
        except Exception as error:
            tell_failure(error)
        else:
            self._seconds[is_store, number] = time.perf_counter() - began_s

    def _take_seconds(self, is_store: bool, number: int) -> float | None:
        return self._seconds.pop((is_store, number), None)

    @staticmethod
    def _copy(
        sources: dict[str, torch.Tensor] | None,
        read: list[int],
        targets: dict[str, torch.Tensor] | None,
        written: list[int],
    ) -> None:
        assert sources is not None
        assert targets is not None
        for name, source in sources.items():
            targets[name][written] = source[read]
