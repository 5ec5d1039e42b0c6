"""Records what a simulated engine decides: evictions, admissions, preemptions, and copies to and from the CPU cache.

A block is named by the first request that had it and its place there, as its hash may differ from process to process.
The hooks are where the scheduler meets the rest of vLLM: events of the KV cache, and what a step tells workers.
"""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from eviction_log import EvictionLog
from rich.console import Console
from vllm.distributed.kv_events import BlockRemoved, EventBatch
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    ExternalBlockHash,
    get_block_hash,
    get_group_id,
    maybe_convert_block_hash,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from agentcache.engine.scheduler import AgentScheduler
from agentcache.jobs.loader import load_run
from agentcache.jobs.recorded_job import PromptWriter, TextJob
from agentcache.jobs.settings import JobSettings
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.models.catalog import resolve_model
from agentcache.policy.presets import find_step_cost
from agentcache.report.events import Event
from agentcache.run.display import ReplayDisplay
from agentcache.sim.clock import VirtualClock
from agentcache.sim.delays import MEASURED_FRONT_END
from agentcache.sim.engine import SimulatedEngine
from agentcache.sim.engine_shape import EngineShape
from agentcache.sim.known_hashes import MadeHashes
from agentcache.sim.runner import SimulationRunner

LOGS = ("evictions", "admissions", "preemptions", "stores", "fetches")
POLICIES = (
    "vllm",
    "lru",
    "asymcache",
    "agentcache",
    "agentcache-interactive",
    "continuum-code",
    "continuum-paper",
)
# Slow beside its bandwidth, and not measured: no profile that is measured anew moves anything.
GPU = "h20"
BLOCK_TOKENS = 32
STEP_TOKENS = 2048
# Decodes are most of what a simulation takes.
REPLY_TOKENS = 14


class Kind(NamedTuple):
    """A model and the tokens of its two caches: too few for all jobs, and enough for any of them."""

    model: str
    cache_tokens: int
    host_tokens: int


KINDS = {
    "full": Kind("shape:llama-3.1-8b", 5_000, 8_000),
    "windows": Kind("shape:gpt-oss-20b", 6_000, 8_000),
    "states": Kind("shape:qwen3.5-9b", 24_000, 30_000),
}
TIERS = ("gpu", "cpu")
# Policy, which caches there are, and what the layers keep, by the name of the three.
CASES = {"-".join(case): case for case in product(POLICIES, TIERS, KINDS)}
# Each of them hashes its blocks once for all policies.
_HASHES: dict[str, dict[str, MadeHashes]] = {kind: {} for kind in KINDS}


class _Block(NamedTuple):
    """One group's KV of the tokens that hash so."""

    block_hash: ExternalBlockHash
    group: int


class Recording(EvictionLog):
    """What one scheduler decides. Read `write` when it is done."""

    def __init__(self, scheduler: AgentScheduler) -> None:
        super().__init__(scheduler)
        self._scheduler = scheduler
        self._blocks = scheduler.kv_cache_manager.block_pool.blocks
        self._requests: dict[str, Request] = {}
        self._host: dict[int, _Block] = {}
        self._evicted: list[_Block] = []
        self._steps: dict[str, list[str]] = {"admissions": [], "preemptions": []}
        self._copied: dict[str, list[tuple[str, _Block]]] = {"stores": [], "fetches": []}

    def publish(self, events: EventBatch) -> None:
        """Note what the GPU's cache has lost."""
        for event in events.events:
            if isinstance(event, BlockRemoved) and event.medium == "GPU":
                assert event.group_idx is not None
                self._evicted += [_Block(each, event.group_idx) for each in event.block_hashes]

    def add(self, request: Request) -> None:
        """Note a client's request."""
        self._requests[request.request_id] = request

    def note_step(self, output: SchedulerOutput) -> None:
        """Note who begins and who must begin again, and the copies that workers are told of, as a worker would."""
        time = f"{self._scheduler.now():.6f}"
        resumed = output.scheduled_cached_reqs
        begun = {each.req_id: each.num_computed_tokens for each in output.scheduled_new_reqs}
        begun |= {
            name: computed
            for name, computed in zip(resumed.req_ids, resumed.num_computed_tokens, strict=True)
            if name in resumed.resumed_req_ids
        }
        for name, computed in begun.items():
            entry = f"{time} {self._name(name)} has {computed} gets {output.num_scheduled_tokens[name]}"
            self._steps["admissions"].append(entry)
        preempted = sorted(map(self._name, output.preempted_req_ids or ()))
        self._steps["preemptions"] += [f"{time} {name}" for name in preempted]
        self._note_copies(time, output.kv_connector_metadata)

    def _note_copies(self, time: str, metadata: Any) -> None:
        if metadata is None:
            return
        self._copied["fetches"] += [(time, self._host[source]) for source in metadata.load_cpu_blocks]
        for source, target in zip(metadata.store_gpu_blocks, metadata.store_cpu_blocks, strict=True):
            key = self._blocks[source].block_hash
            assert key is not None
            self._host[target] = _Block(maybe_convert_block_hash(get_block_hash(key)), get_group_id(key))
            self._copied["stores"].append((time, self._host[target]))

    def _name(self, request_id: str) -> str:
        """What is no client's fills a gap for one."""
        return request_id if request_id in self._requests else "fill"

    def write(self) -> dict[str, list[str]]:
        """Write the logs, each of `LOGS`, an entry a line."""
        first: dict[BlockHash, str] = {}
        for name, request in self._requests.items():
            for place, block_hash in enumerate(request.block_hashes):
                if block_hash not in first:
                    first[block_hash] = f"{name}:{place}"
        places = {maybe_convert_block_hash(block_hash): place for block_hash, place in first.items()}

        def tell(block: _Block) -> str:
            return f"{places[block.block_hash]} group {block.group}"

        copied = {log: [f"{time} {tell(block)}" for time, block in entries] for log, entries in self._copied.items()}
        return {"evictions": list(map(tell, self._evicted)), **self._steps, **copied}


class RecordedScheduler(AgentScheduler):
    """The scheduler with a `recording` of what it decides."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recording = Recording(self)

    def add_request(self, request: Request) -> None:
        self.recording.add(request)
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        output = super().schedule(throttle_prefills)
        self.recording.note_step(output)
        return output


class _Nowhere:
    def write(self, event: Event) -> None:
        pass


@cache
def load_jobs() -> tuple[list[TextJob], PromptWriter]:
    """The same for all models: those of published shapes share a tokenizer."""
    tokenizer = LocalTokenizer(resolve_model(KINDS["full"].model).path)
    settings = JobSettings(workload="bfcl", jobs=40, rate=20.0, scale=0.02, tool_latency="lognormal:0.6,0.66", seed=0)
    jobs = [each for each in load_run(settings, tokenizer).jobs if isinstance(each, TextJob)]
    # What is cut off a reply is in the next prompt nevertheless.
    short = [replace(each, replies=tuple(reply[:REPLY_TOKENS] for reply in each.replies)) for each in jobs]
    return short, PromptWriter(tokenizer)


def record(case: str) -> dict[str, list[str]]:
    """Simulate a case of `CASES` and return its logs."""
    policy, tier, kind = CASES[case]
    model, cache_tokens, host_tokens = KINDS[kind]
    jobs, prompts = load_jobs()
    shape = EngineShape(
        model_path=resolve_model(model).path,
        cache_tokens=cache_tokens,
        block_size=BLOCK_TOKENS,
        max_num_batched_tokens=STEP_TOKENS,
        max_num_seqs=64,
        async_scheduling=True,
        host_tokens=host_tokens if tier == "cpu" else 0,
        knobs={"gpu": GPU},
    )
    gpu = find_step_cost(model.partition(":")[2], GPU)
    engine = SimulatedEngine(shape, policy, gpu, VirtualClock(), hashes=_HASHES[kind], scheduler=RecordedScheduler)
    with ReplayDisplay(policy, len(jobs), Console(file=io.StringIO())) as display:
        SimulationRunner(
            policy,
            [engine],
            prompts=prompts,
            writer=_Nowhere(),
            display=display,
            front_end=MEASURED_FRONT_END,
            checks_tokens=False,
        ).run(jobs)
    assert isinstance(engine.scheduler, RecordedScheduler)
    return engine.scheduler.recording.write()
