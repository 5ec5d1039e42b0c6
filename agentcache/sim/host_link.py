"""The copies between the GPU and the host's memory that a step's metadata asks vLLM's workers for, as delays."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadMetadata

from agentcache.engine.tier.worker import CopiesDone, TierMetadata


@dataclass(frozen=True, slots=True)
class _Copy:
    """`requests` wait for it, if it is one of vLLM's own loads."""

    number: int
    is_store: bool
    requests: Sequence[str]
    ended_s: float


class HostLink:
    """Each direction copies one after the other, at full speed beside the other, as vLLM's two streams do."""

    def __init__(self, *, block_s: float, latency_s: float, workers: int) -> None:
        """Take the seconds that a block takes, those until a copy begins, and how many workers make each copy."""
        self._workers = workers
        self._block_s = block_s
        self._latency_s = latency_s
        self._copies: deque[_Copy] = deque()
        self._free_s = {True: 0.0, False: 0.0}

    def begin(self, metadata: KVConnectorMetadata | None, started_s: float, ended_s: float) -> None:
        """Begin what a step asks for: loads beside the step, vLLM's own stores behind it."""
        if not isinstance(metadata, SimpleCPUOffloadMetadata):
            return
        if metadata.load_event >= 0:
            requests = metadata.load_event_to_reqs.get(metadata.load_event, ())
            self._add(metadata.load_event, False, requests, len(metadata.load_gpu_blocks), started_s)
        ready_s = started_s if isinstance(metadata, TierMetadata) else ended_s
        if metadata.store_event >= 0:
            self._add(metadata.store_event, True, (), len(metadata.store_gpu_blocks), ready_s)

    def end(self, now_s: float) -> KVConnectorOutput | None:
        """Return what has ended by now, as a worker reports it; None if nothing has."""
        ended = [copy for copy in self._copies if copy.ended_s <= now_s]
        if not ended:
            return None
        self._copies = deque(copy for copy in self._copies if copy.ended_s > now_s)
        return KVConnectorOutput(
            finished_recving={name for copy in ended for name in copy.requests} or None,
            kv_connector_worker_meta=CopiesDone(
                {copy.number: self._workers for copy in ended if copy.is_store},
                {copy.number: self._workers for copy in ended if not copy.is_store and not copy.requests},
            ),
        )

    def _add(self, number: int, is_store: bool, requests: Sequence[str], blocks: int, ready_s: float) -> None:
        begun_s = max(self._free_s[is_store], ready_s + self._latency_s)
        self._free_s[is_store] = begun_s + blocks * self._block_s
        self._copies.append(_Copy(number, is_store, requests, self._free_s[is_store]))
