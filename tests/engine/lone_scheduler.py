"""vLLM's scheduler without worker or GPU: steps are scheduled for real, the sampled tokens are made up."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from shadow_cache import ShadowCache
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from agentcache.engine.constants import CALLS_ARGUMENT, REPLY_ARGUMENT
from agentcache.engine.marks import write_forced_calls
from tool_runtime.agent.job import ToolCall

BLOCK_SIZE = 16
# No token that is made up is as large.
EOS, STOP_TOKEN = 8100, 8101


def make_config(
    model_path: str,
    scheduler: str | type[Any] | None,
    engine: Mapping[str, Any] | None = None,
    *,
    is_async: bool = True,
    **knobs: object,
) -> VllmConfig:
    """An engine for short requests and small steps, so that prompts come in chunks.

    `engine` are further options of vLLM's, `knobs` are agentcache's. vLLM itself schedules synchronously on CPUs.
    """
    options: dict[str, Any] = {
        "block_size": BLOCK_SIZE,
        "max_model_len": 512,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 96,
        "scheduler_cls": scheduler,
        "additional_config": {"agentcache": knobs},
    }
    config = EngineArgs(model=model_path, **{**options, **(engine or {})}).create_engine_config()
    config.scheduler_config.async_scheduling = is_async
    return config


def make_scheduler(config: VllmConfig, num_blocks: int, **options: Any) -> Any:
    """What the engine core does at its start, for one full-attention layer. `options` are our scheduler's own."""
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=2, head_size=32, dtype=torch.float32)
    config.cache_config.num_gpu_blocks = num_blocks
    return config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        **options,
    )


@dataclass(frozen=True, slots=True)
class Step:
    """All that a policy can change in a step. Strings are ids of requests, lists hold ids of blocks."""

    scheduled: dict[str, tuple[int, int, Any]]  # Tokens scheduled, tokens computed before, new blocks.
    hit_tokens: dict[str, int]
    preempted: list[str]
    evicted: list[int]
    free_blocks: list[int]  # Next victim first.
    finished: dict[str, list[int]]  # Here they are the tokens of prompt and reply.


class LoneScheduler:
    """`in_flight` is how many steps are scheduled before the first one's tokens come back: 1, or 2 as when async.

    With `shadow` every step asserts that each row would read the keys and values of its own tokens.
    """

    def __init__(self, scheduler: AsyncScheduler, in_flight: int = 1, *, shadow: bool = False) -> None:
        self.scheduler = scheduler
        config = scheduler.kv_cache_config
        specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        self.shadow = ShadowCache(config.num_blocks, specs) if shadow else None
        self.pool = scheduler.kv_cache_manager.block_pool
        self.in_flight = in_flight
        self._outputs: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._replies: dict[str, Sequence[int]] = {}
        hash_function = get_hash_fn_by_name(scheduler.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(BLOCK_SIZE, hash_function)

    def add(
        self,
        request_id: str,
        prompt: list[int],
        output_tokens: int,
        calls: Sequence[ToolCall] | None = None,
        *,
        reply: Sequence[int] = (),
        stop: str | None = None,
        logprobs: int | None = None,
        marks: Mapping[str, Any] = {},
        **options: Any,
    ) -> None:
        """`calls` are those of a recorded reply; without them a reply that comes to its length is cut off there.

        `marks` are the API server's. The worker samples `reply`, which ends the request at EOS or STOP_TOKEN, and makes
        up what lies behind it.
        """
        dictated = {REPLY_ARGUMENT: [], CALLS_ARGUMENT: write_forced_calls(calls)} if calls is not None else {}
        told = {**marks, **dictated} or None
        params = SamplingParams(
            max_tokens=output_tokens, stop=stop, stop_token_ids=[STOP_TOKEN], logprobs=logprobs, extra_args=told
        )
        params.update_from_generation_config({}, EOS)
        self._replies[request_id] = reply
        self.scheduler.add_request(self.make_request(request_id, prompt, params, **options))

    def add_sent(self, request: EngineCoreRequest, reply: Sequence[int]) -> None:
        """Add a request as a front end sends it."""
        self._replies[request.request_id] = reply
        self.scheduler.add_request(Request.from_engine_core_request(request, self._hasher))

    def make_request(
        self, name: str, prompt: list[int], params: SamplingParams | None = None, **options: Any
    ) -> Request:
        """A request that is not added yet."""
        return Request(name, prompt, params or SamplingParams(), None, block_hasher=self._hasher, **options)

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def find_blocks(self, tokens: list[int]) -> list[int]:
        """The ids of the cached blocks that a prompt of these tokens would hit, up to the first that is missing."""
        hashes = self.make_request("", tokens).block_hashes
        found = (self.pool.get_cached_block(block_hash, [0]) for block_hash in hashes)
        return [blocks[0].block_id for blocks in takewhile(bool, found)]

    @property
    def idle(self) -> bool:
        return not self.scheduler.requests and not self._outputs

    def step(self) -> Step:
        hashes = [block.block_hash for block in self.pool.blocks]
        output = self.scheduler.schedule()
        if self.shadow is not None:
            self.shadow.run(output, self.scheduler.requests)
        evicted = [i for i, known in enumerate(hashes) if known and self.pool.blocks[i].block_hash != known]
        if output.num_scheduled_tokens:
            self._outputs.append((output, self._sample(output)))
        requests = dict(self.scheduler.requests)
        replies = self._take_replies(len(self._outputs) == self.in_flight or not output.num_scheduled_tokens)
        rows: list[Any] = [(new.req_id, new.num_computed_tokens, new.block_ids) for new in output.scheduled_new_reqs]
        old = output.scheduled_cached_reqs
        rows += zip(old.req_ids, old.num_computed_tokens, old.new_block_ids, strict=True)
        return Step(
            scheduled={name: (output.num_scheduled_tokens[name], *rest) for name, *rest in rows},
            hit_tokens={one.request_id: one.prefill_stats.num_cached_tokens for one in replies if one.prefill_stats},
            preempted=sorted(output.preempted_req_ids or ()),
            evicted=evicted,
            free_blocks=[block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()],
            finished={one.request_id: list(requests[one.request_id].all_token_ids) for one in replies if one.finished},
        )

    def _take_replies(self, due: bool) -> list[EngineCoreOutput]:
        if not self._outputs or not due:
            return []
        by_client = self.scheduler.update_from_output(*self._outputs.popleft())
        return [reply for outputs in by_client.values() for reply in outputs.outputs]

    def _sample(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """The next token for every request whose prompt is through."""
        ids = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[request_id] for request_id in ids]
        sampled = [[] if request.is_prefill_chunk else [self._sample_token(request)] for request in requests]
        if self.shadow is not None:
            for name, row in zip(ids, sampled, strict=True):
                self.shadow.sampled(name, row)
        return ModelRunnerOutput(ids, {request_id: row for row, request_id in enumerate(ids)}, sampled)

    def _sample_token(self, request: Request) -> int:
        """The token of a dictated reply, else one made of the request and the position."""
        reply = self._replies.get(request.request_id, ())
        place = request.num_computed_tokens - request.num_prompt_tokens
        if place < len(reply):
            return reply[place]
        return zlib.crc32(f"{request.request_id} {request.num_computed_tokens}".encode()) % 8000
