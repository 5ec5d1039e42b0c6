"""Runs vLLM in this process with our scheduler, one request or batch at a time, for measuring."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.engine.cached_blocks import KV_CACHE_GROUP
from agentcache.engine.vllm.base import VllmConfig
from agentcache.engine.vllm.compat import check_vllm
from agentcache.engine.vllm.engine import EngineCore, Executor, LLMEngine
from agentcache.engine.vllm.types import Request, SamplingParams, make_block_hash_with_group_id
from agentcache.errors import CompatibilityError, InputError, IntegrityError, ServerError, in_one_line
from agentcache.policy.step_fit import MeasuredStep
from agentcache.profile.step_log import LoggingScheduler
from agentcache.server.arguments import build_arguments, make_engine_config

LOGGING_SCHEDULER = f"{LoggingScheduler.__module__}.{LoggingScheduler.__name__}"

# Every block stays until it is dropped or room is needed; every gap is filled, however little that saves.
PLAIN_KNOBS: Mapping[str, object] = {
    "policy": "lru",
    "segments": {"enabled": True},
    "tuning": {"row_s": 0.0},
    "chunking": {"enabled": False},
}
# No measurement needs more steps; an engine that takes more is stuck.
_MAX_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Timing:
    """`ttft_s` is from the request's arrival, hashing included, to its first token; `steps` are those in between."""

    ttft_s: float
    steps: tuple[MeasuredStep, ...]

    @property
    def steps_s(self) -> float:
        """Seconds in the engine's steps alone."""
        return sum(step.seconds for step in self.steps)


class BenchEngine:
    """One engine in this process, which only the caller steps. `scheduler` is its own, `log` has its steps."""

    def __init__(self, config: VllmConfig) -> None:
        """Start the engine. Raises ServerError when it does not come up, InputError without a prefix cache."""
        check_vllm()
        began = time.monotonic()
        try:
            self.engine = LLMEngine(config, Executor.get_class(config), log_stats=False)
        except Exception as error:
            raise ServerError(f"the engine did not start: {in_one_line(error)}") from error
        self.startup_s = time.monotonic() - began
        core = getattr(self.engine.engine_core, "engine_core", None)
        if not isinstance(core, EngineCore) or not isinstance(core.scheduler, LoggingScheduler):
            raise CompatibilityError(f"measuring needs an engine in this process, with {LOGGING_SCHEDULER}")
        if core.request_block_hasher is None:
            raise InputError("measuring needs prefix caching; leave --no-enable-prefix-caching out")
        self.scheduler = core.scheduler
        self.log = core.scheduler.step_log
        self.block_size = core.scheduler.block_size
        self.step_tokens = core.scheduler.max_num_scheduled_tokens
        """The most that a step computes."""
        self.max_tokens: int = config.model_config.max_model_len
        self.max_seqs: int = config.scheduler_config.max_num_seqs
        # As its log tells it.
        self.kv_tokens: int | None = config.cache_config.kv_cache_size_tokens
        self._hasher = core.request_block_hasher
        self._pool = core.scheduler.kv_cache_manager.block_pool
        self._numbers = itertools.count()

    @property
    def cache_tokens(self) -> int:
        """The tokens that the cache holds: one block is vLLM's placeholder."""
        return (self._pool.num_gpu_blocks - 1) * self.block_size

    def close(self) -> None:
        """End the engine and give its memory back."""
        self.engine.engine_core.shutdown()

    def cache(self, tokens: Sequence[int]) -> None:
        """Compute the prompt, so that all its full blocks are cached."""
        self.time_prefill(tokens)

    def keep_only(self, tokens: Sequence[int], intervals: Iterable[tuple[int, int]] = ()) -> None:
        """Drop the prompt's cached blocks outside of the intervals of tokens, whose ends are whole blocks.

        Raises InputError for other ends.
        """
        kept: set[int] = set()
        for start, end in intervals:
            if start % self.block_size or end % self.block_size:
                raise InputError(f"interval {start} to {end}: both ends must be multiples of {self.block_size} tokens")
            kept.update(range(start // self.block_size, end // self.block_size))
        hashed = Request("hashed only", list(tokens), SamplingParams(max_tokens=1), None, block_hasher=self._hasher)
        dropped = {
            make_block_hash_with_group_id(block_hash, KV_CACHE_GROUP)
            for index, block_hash in enumerate(hashed.block_hashes)
            if index not in kept
        }
        # There may be several of a hash: two requests of a step can compute the same block.
        self._pool.evict_blocks({block.block_id for block in self._pool.blocks if block.block_hash in dropped})

    def limit_step(self, tokens: int | None) -> None:
        """Limit a step to so many tokens; None is what the engine was started with."""
        limit = self.step_tokens if tokens is None else min(tokens, self.step_tokens)
        self.scheduler.max_num_scheduled_tokens = limit

    def time_prefill(self, tokens: Sequence[int], max_tokens: int = 1) -> Timing:
        """Time one request on the idle engine, which is idle again afterwards."""
        self.settle()
        start_s = time.perf_counter()
        request_id = self.add(tokens, max_tokens)
        self.step_until(request_id)
        timing = Timing(time.perf_counter() - start_s, tuple(self.log.take()))
        self.settle()
        return timing

    def add(self, tokens: Sequence[int], max_tokens: int) -> str:
        """Add a request for exactly `max_tokens` tokens, by its id."""
        request_id = f"bench-{next(self._numbers)}"
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        self.engine.add_request(request_id, {"prompt_token_ids": list(tokens)}, params)
        return request_id

    def step(self) -> dict[str, Any]:
        """Run a step and return what it brought, by request. With async scheduling it may be nothing."""
        return {output.request_id: output for output in self.engine.step()}

    def step_until(self, *request_ids: str) -> None:
        """Run steps until each of the requests has a token. Raises IntegrityError when one gets none."""
        missing = set(request_ids)
        for _ in range(_MAX_STEPS):
            missing -= self.step().keys()
            if not missing:
                return
        raise IntegrityError(f"no token after {_MAX_STEPS} steps: {sorted(missing)[:5]}")

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort the requests."""
        self.engine.abort_request(list(request_ids))

    def settle(self) -> None:
        """Let what is under way end, and forget the steps that were logged."""
        for _ in range(_MAX_STEPS):
            # Fill requests included.
            if not self.scheduler.has_requests():
                break
            self.engine.step()
        # With async scheduling a last, empty batch may be left.
        self.engine.step()
        self.log.take()


def make_bench_config(model: str, options: Sequence[str], knobs: Mapping[str, object] = PLAIN_KNOBS) -> VllmConfig:
    """Let vLLM make its configuration. `model` and `options` as for `agentcache serve`; `knobs` are agentcache's.

    Raises InputError.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    arguments = build_arguments(model, options)
    arguments.additional_config[CONFIG_KEY] = read_config({CONFIG_KEY: dict(knobs)}).model_dump()
    arguments.scheduler_cls = LOGGING_SCHEDULER
    return make_engine_config(arguments)
