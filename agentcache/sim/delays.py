"""Delays what takes time beside a step: copies to and from the CPU cache, the API server."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentcache.engine.cpu_cache.link import find_block_bytes, find_speeds
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.connector import CopiesDone
from agentcache.engine.vllm.copiers import CopyOrders
from agentcache.engine.vllm.types import KVConnectorOutput
from agentcache.engine.vllm.workers import (
    KVConnectorMetadata,
    SimpleCPUOffloadMetadata,
    SimpleCPUOffloadWorkerMetadata,
)
from agentcache.policy.link_profile import Link


@dataclass(slots=True)
class _Copy:
    """`requests` wait for it, if it is one of vLLM's own loads. `left_s`: so long it takes the link alone."""

    number: int
    is_store: bool
    requests: Sequence[str]
    begins_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class Links:
    """Both directions, and what a direction keeps of its speed while the other copies too."""

    fetch: Link
    store: Link
    both_share: float


def find_links(scheduler: AgentScheduler) -> Links:
    """Find what copies of the scheduler's blocks cost. Raises InputError for a cost profile that cannot be used."""
    speeds = find_speeds(scheduler.vllm_config, scheduler.config)
    block_bytes = find_block_bytes(scheduler)
    return Links(speeds.fetch.of_blocks(block_bytes), speeds.store.of_blocks(block_bytes), speeds.both_share)


class HostLink:
    """Each direction copies one after the other, as vLLM's two streams do, and slows the other down."""

    def __init__(self, links: Links, *, workers: int) -> None:
        """Take what a copy costs, and how many workers make each copy."""
        self._workers = workers
        self._links = links
        self._queues: tuple[deque[_Copy], deque[_Copy]] = deque(), deque()
        self._ended: list[_Copy] = []
        self._now_s = 0.0
        # vLLM's own connector asks for the copies, and hears of loads by the requests that wait for them.
        self._is_vllms = False

    def begin(self, metadata: KVConnectorMetadata | None, started_s: float, ended_s: float) -> None:
        """Begin what a step asks for: loads beside the step, vLLM's own stores behind it."""
        if isinstance(metadata, CopyOrders):
            self._begin(metadata, (), started_s, started_s)
        elif isinstance(metadata, SimpleCPUOffloadMetadata):
            self._is_vllms = True
            self._begin(metadata, metadata.load_event_to_reqs.get(metadata.load_event, ()), started_s, ended_s)

    def _begin(
        self, asked: CopyOrders | SimpleCPUOffloadMetadata, requests: Sequence[str], started_s: float, ready_s: float
    ) -> None:
        if asked.load_event >= 0:
            self._add(asked.load_event, False, requests, len(asked.load_gpu_blocks), started_s)
        if asked.store_event >= 0:
            self._add(asked.store_event, True, (), len(asked.store_gpu_blocks), ready_s)

    def end(self, now_s: float) -> KVConnectorOutput | None:
        """Return what has ended by now, as a worker reports it; None if nothing has. `now_s` never goes back."""
        self._advance(now_s)
        ended, self._ended = self._ended, []
        if not ended:
            return None
        if not self._is_vllms:
            done = CopiesDone({copy.number: [0.0] * self._workers for copy in ended})
            return KVConnectorOutput(kv_connector_worker_meta=done)
        # In their order: a set's differs from process to process, and with it the requests that run next.
        fetched: Any = dict.fromkeys(name for copy in ended for name in copy.requests).keys()
        return KVConnectorOutput(
            finished_recving=fetched or None,
            kv_connector_worker_meta=SimpleCPUOffloadWorkerMetadata(
                {copy.number: self._workers for copy in ended if copy.is_store}
            ),
        )

    def _add(self, number: int, is_store: bool, requests: Sequence[str], blocks: int, ready_s: float) -> None:
        link = self._links.store if is_store else self._links.fetch
        copy = _Copy(number, is_store, requests, ready_s + link.latency_s, blocks * link.block_s)
        self._queues[is_store].append(copy)

    def _advance(self, to_s: float) -> None:
        """Let the link copy until `to_s`, from one beginning or end of a copy to the next."""
        while self._now_s < to_s:
            heads = [queue[0] for queue in self._queues if queue]
            active = [copy for copy in heads if copy.begins_s <= self._now_s]
            if not heads:
                self._now_s = to_s
                return
            speed = self._links.both_share if len(active) > 1 else 1.0
            begins_s = min((copy.begins_s for copy in heads if copy.begins_s > self._now_s), default=math.inf)
            first = min(active, key=lambda copy: copy.left_s, default=None)
            ends_s = math.inf if first is None else self._now_s + first.left_s / speed
            next_s = min(begins_s, ends_s, to_s)
            for copy in active:
                copy.left_s -= (next_s - self._now_s) * speed
            self._now_s = next_s
            if first is not None and ends_s == next_s:
                self._ended.append(self._queues[first.is_store].popleft())


def make_link(scheduler: AgentScheduler) -> HostLink:
    """Make the link of the scheduler's GPUs, which all copy at once."""
    workers = scheduler.parallel_config.tensor_parallel_size
    return HostLink(find_links(scheduler), workers=workers)


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """The API server as delays: HTTP, chat template, tokens of the prompt; then tool-call parser, text and HTTP.

    All in seconds. One process serves everybody, so both ways take longer by `*_beside_s` for each other request in
    the engine, whose tokens it streams meanwhile. The defaults are no front end: the client stands beside the engine.
    """

    request_s: float = 0.0
    prompt_token_s: float = 0.0
    request_beside_s: float = 0.0
    reply_s: float = 0.0
    reply_beside_s: float = 0.0

    def request_delay_s(self, prompt_tokens: int, beside: int) -> float:
        """Predict the seconds from the client's sending to the engine, with `beside` requests in it."""
        return self.request_s + prompt_tokens * self.prompt_token_s + beside * self.request_beside_s

    def reply_delay_s(self, beside: int) -> float:
        """Predict the seconds from the engine's last token to the client, with `beside` requests left in it."""
        return self.reply_s + beside * self.reply_beside_s


# Fitted to 970 requests of two replays of BFCL on an H200 (what came of it: docs/results.md): `vllm serve`'s one
# API process, streaming, and the replay's client, on the 32 cores of a host with two such engines.
MEASURED_FRONT_END = FrontEnd(
    request_s=0.010, prompt_token_s=4.3e-6, request_beside_s=0.003, reply_s=0.018, reply_beside_s=0.001
)
