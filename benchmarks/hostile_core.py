"""vLLM's scheduler with ours, or alone, without a worker: what the engine core's thread does, timed step by step."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scheduler_overhead import BLOCK_TOKENS, STEP_TOKENS, make_scheduler
from vllm import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import BlockHash, get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from agentcache.engine.constants import CALLS_ARGUMENT, REPLY_ARGUMENT
from agentcache.engine.marks import write_forced_calls
from agentcache.engine.vllm.connector import CopiesDone
from agentcache.engine.vllm.copiers import CopyOrders
from agentcache.engine.vllm.garbage import SpareSurvivors
from agentcache.models.catalog import resolve_model
from agentcache.sim.clock import VirtualClock
from agentcache.sim.engine_shape import EngineShape, build_scheduler
from agentcache.sim.known_hashes import count_same
from tool_runtime.agent.job import ToolCall

LONGEST_PROMPT = 131_072
# Of Llama 3, which the model is.
END_OF_TURN = 128_009
SEATS = 256
_STEP_S = 0.02
# What an API server tokenizes in that time at most: a million tokens a second.
_MOST_AT_ONCE = 16
_MOST_TOKENS_AT_ONCE = 20_000


class Core:
    """`worst_s` is the CPU time of the longest step: all that has come since the one before, and the step itself."""

    def __init__(self, *, is_stock: bool = False, cache_tokens: int = 500_000, host_tokens: int = 0) -> None:
        self.clock = VirtualClock()
        self.is_stock = is_stock
        self.scheduler: Any = (
            make_scheduler("vllm", cache_tokens // BLOCK_TOKENS, LONGEST_PROMPT // 2, SEATS)
            if is_stock
            else build_scheduler(_shape(cache_tokens, host_tokens), "agentcache", self.clock)
        )
        hash_function = get_hash_fn_by_name(self.scheduler.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hash_blocks = get_request_block_hasher(BLOCK_TOKENS, hash_function)
        self._longest: Request | None = None
        self._numbers = itertools.count()
        self.worst_s = self._since_step_s = 0.0
        self._offered = self._offered_tokens = 0
        # As an engine core does when it has started.
        if is_stock:
            gc.collect()
            gc.freeze()
        else:
            SpareSurvivors().begin()

    def add(
        self,
        prompt: Sequence[int],
        *,
        name: str | None = None,
        calls: Sequence[ToolCall] | None = (),
        reply: int = 1,
        marks: dict[str, Any] | None = None,
        params: dict[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """Add a request whose reply makes these calls; None is a reply that is cut off, as most of a stranger's are."""
        dictated = {} if calls is None else {REPLY_ARGUMENT: [], CALLS_ARGUMENT: write_forced_calls(calls)}
        asked = SamplingParams(max_tokens=reply, extra_args={**dictated, **(marks or {})}, **(params or {}))
        asked.update_from_generation_config({}, END_OF_TURN)
        name = name or f"request-{next(self._numbers)}-0a1b2c3d"
        # vLLM makes and hashes it in another thread.
        request = Request(name, list(prompt), asked, None, block_hasher=self._hash, **options)
        if request.cache_salt is None and (
            self._longest is None or request.num_tokens > self._longest.num_prompt_tokens
        ):
            self._longest = request
        self.do(lambda: self.scheduler.add_request(request))
        return name

    def offer(self, prompt: Sequence[int], **options: Any) -> None:
        """Add a request, and step when so many have come as an API server passes on in a step's time."""
        self.add(prompt, **options)
        self._offered += 1
        self._offered_tokens += len(prompt)
        if self._offered == _MOST_AT_ONCE or self._offered_tokens >= _MOST_TOKENS_AT_ONCE:
            self.step()

    def abort(self, names: Iterable[str]) -> None:
        self.do(lambda: self.scheduler.finish_requests(list(names), RequestStatus.FINISHED_ABORTED))

    def do(self, function: Callable[[], object]) -> None:
        """Do what comes in between two steps."""
        started_s = time.thread_time()
        function()
        self._since_step_s += time.thread_time() - started_s

    def step(self) -> None:
        self.clock.advance_to(self.clock.now() + _STEP_S)
        outputs: list[SchedulerOutput] = []
        self.do(lambda: outputs.append(self.scheduler.schedule()))
        sampled = self._sample(outputs[0])
        self.do(lambda: self.scheduler.update_from_output(outputs[0], sampled))
        self.worst_s = max(self.worst_s, self._since_step_s)
        self._since_step_s = 0.0
        self._offered = self._offered_tokens = 0

    def run(self, most_steps: int = 100_000) -> None:
        """Step until nothing is left to do."""
        while self.scheduler.requests and most_steps:
            self.step()
            most_steps -= 1
        self.step()

    def rest(self, seconds: float) -> None:
        """Let time pass without a step, as in an engine without requests."""
        self.clock.advance_to(self.clock.now() + seconds)

    def _hash(self, request: Request) -> list[BlockHash]:
        """Hash a request's blocks, but not again those that it has in common with the longest prompt so far."""
        longest = self._longest
        if not request.block_hashes and request.cache_salt is None and longest is not None:
            same = count_same(longest.all_token_ids, request.all_token_ids) // BLOCK_TOKENS
            request.block_hashes.extend(longest.block_hashes[:same])
        return list(self._hash_blocks(request))

    def _sample(self, output: SchedulerOutput) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        prefills = [self.scheduler.requests[name].is_prefill_chunk for name in ids]
        rows = {name: row for row, name in enumerate(ids)}
        sampled = [[] if prefill else [7] for prefill in prefills]
        return ModelRunnerOutput(ids, rows, sampled, kv_connector_output=_copy(output))


def _shape(cache_tokens: int, host_tokens: int) -> EngineShape:
    return EngineShape(
        model_path=resolve_model("shape:llama-3.1-8b").path,
        cache_tokens=cache_tokens,
        block_size=BLOCK_TOKENS,
        max_num_batched_tokens=STEP_TOKENS,
        max_num_seqs=SEATS,
        async_scheduling=True,
        host_tokens=host_tokens,
        knobs={"gpu": "h200"},
    )


def _copy(output: SchedulerOutput) -> KVConnectorOutput | None:
    """Report the step's copies between the caches as made."""
    asked = output.kv_connector_metadata
    if not isinstance(asked, CopyOrders):
        return None
    done = CopiesDone({number: [0.0] for number in (asked.store_event, asked.load_event) if number >= 0})
    return KVConnectorOutput(kv_connector_worker_meta=done)
