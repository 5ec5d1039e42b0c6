"""vLLM's engine in this process: requests come while others run, and the scheduler and its pool can be reached."""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from vllm import RequestOutput, SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats
from vllm.v1.request import Request
from vllm_internals import add_group_of_experts, keep_shared_groups

from agentcache.config import AgentCacheConfig
from agentcache.engine.constants import CALLS_ARGUMENT, REPLY_ARGUMENT, SCHEDULER_CLASS
from agentcache.engine.marks import write_forced_calls
from agentcache.engine.rpc import policy_switch
from agentcache.engine.scheduler import AgentScheduler
from tool_runtime.agent.job import ToolCall

# The CPU kernels want multiples of 32.
BLOCK = 32
# Every island is worth a row, however short.
ALL_ISLANDS = {"row_s": 0.0}
# Each engine looks for kernels in every module of the process, for half of its start; the first has replaced them all.
current_platform.register_triton_kernel_overrides = functools.cache(  # type: ignore[method-assign]
    current_platform.register_triton_kernel_overrides
)
_SMALL = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": BLOCK,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 1024,
    "num_gpu_blocks_override": 129,
    "kv_cache_memory_bytes": 64 * 2**20,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """`logprobs` are those of the tokens that were chosen, `cached` the prompt tokens that were not computed.

    `likely` has the chosen and, if asked for by `logprobs`, the likeliest tokens of each step, with their logprobs.
    """

    tokens: list[int]
    logprobs: list[float]
    cached: int
    likely: list[dict[int, float]]


class StatsRecorder(StatLoggerBase):
    """What the engine tells the metrics, step by step."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:  # noqa: ARG002 (vLLM's signature)
        self.scheduler: list[SchedulerStats] = []
        self.iterations: list[IterationStats] = []

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, *_: Any, **__: Any
    ) -> None:
        self.scheduler += [scheduler_stats] if scheduler_stats else []
        self.iterations += [iteration_stats] if iteration_stats else []

    def log_engine_initialized(self) -> None:
        pass


def configure(policy: str, **knobs: Any) -> dict[str, Any]:
    return {"policy": policy, "lifespan_s": 200, "tuning": ALL_ISLANDS, "forced_replies": True, **knobs}


def switch_without_collecting(core: EngineCore, config: AgentCacheConfig) -> None:
    """Leave the old scheduler to a later collection: each walks through all that tests import, for half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_switch, "_collect_and_freeze", lambda: None)
        assert policy_switch.use_policy(core, config)


class LiveEngine:
    """Greedy replies of a fixed length; `check_integrity` after every step."""

    def __init__(self, model: str, *, scheduler: str | None = SCHEDULER_CLASS, **options: Any) -> None:
        # What fails an engine in a process of its own: see tests/conftest.py.
        binding = os.environ["VLLM_CPU_OMP_THREADS_BIND"]
        assert binding == "nobind" or not current_platform.is_cpu(), binding
        policy = options.pop("policy", "asymcache")
        knobs = options.pop("knobs", {})
        arguments = EngineArgs(
            model=model,
            use_tqdm_on_load=False,
            scheduler_cls=scheduler,
            additional_config={"agentcache": configure(policy, **knobs)},
            **_SMALL | options,
        )
        self.stats: list[StatsRecorder] = []
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
            # vLLM puts a function that does nothing in its place.
            environment.setattr(torch, "set_num_threads", torch.set_num_threads)
            # Two threads that wait for each other on busy cores take fifty times as long.
            torch.set_num_threads(1)
            add_group_of_experts()
            self._engine = LLMEngine.from_engine_args(arguments, stat_loggers=[self._make_recorder])
        client: Any = self._engine.engine_core
        keep_shared_groups(client)
        self.core = client.engine_core
        self._done: dict[str, RequestOutput] = {}
        self._numbers = itertools.count()
        if isinstance(self.scheduler, AgentScheduler):
            self.scheduler.clock = itertools.count(1.0).__next__

    def use(self, policy: str = "asymcache", look_s: float = 1.0, **knobs: Any) -> None:
        """Go on as an engine that just started under `policy` does."""
        while self.scheduler.has_requests() or self.core.batch_queue:
            self.step()
        switch_without_collecting(self.core, AgentCacheConfig.model_validate(configure(policy, **knobs)))
        for recorder in self.stats:
            recorder.scheduler.clear()
            recorder.iterations.clear()
        # A look at the clock takes that long: a run is the same every time.
        self.scheduler.clock = itertools.count(1.0, look_s).__next__

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    @property
    def schedules_ahead(self) -> bool:
        """Tell whether a step is scheduled while another runs."""
        return self.core.batch_queue is not None

    @property
    def vllm_config(self) -> VllmConfig:
        return self._engine.vllm_config

    @property
    def fill_tokens(self) -> int:
        return int(self.scheduler.gap_filler.stats.fill_tokens)

    def add(
        self,
        prompt: list[int],
        output_tokens: int = 8,
        *,
        salt: str | None = None,
        lora: LoRARequest | None = None,
        priority: int = 0,
        session: str | None = None,
        calls: Sequence[ToolCall] | None = None,
        audio: Sequence[Any] = (),
        **sampling: Any,
    ) -> str:
        """The request's name, by which `reply` finds it. `calls` are those that the reply is said to make."""
        name = f"request-{next(self._numbers)}"
        if calls is not None:
            # Only a dictated reply can have them, and no logits processor is here to dictate it.
            dictated = {REPLY_ARGUMENT: [0] * output_tokens, CALLS_ARGUMENT: write_forced_calls(calls)}
            sampling = {"extra_args": dictated} | sampling
        params = SamplingParams(
            temperature=0.0,
            max_tokens=output_tokens,
            ignore_eos=True,
            **{"detokenize": False, "logprobs": 0} | sampling,
        )
        tokens: Any = {"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {})
        tokens |= {"multi_modal_data": {"audio": list(audio)}} if audio else {}
        self._engine.add_request(name, tokens, params, lora_request=lora, priority=priority, session_id=session)
        return name

    def step(self) -> list[RequestOutput]:
        outputs = [output for output in self._engine.step() if isinstance(output, RequestOutput)]
        if isinstance(self.scheduler, AgentScheduler):
            self.scheduler.check_integrity()
        self._done |= {output.request_id: output for output in outputs if output.finished}
        return outputs

    def finish(self) -> None:
        while self._engine.has_unfinished_requests():
            self.step()

    def reply(self, name: str) -> Reply:
        output = self._done.pop(name)
        (completion,) = output.outputs
        tokens = list(completion.token_ids)
        assert completion.logprobs is not None, output
        likely = [{token: each.logprob for token, each in step.items()} for step in completion.logprobs]  # type: ignore[union-attr]
        chosen = [step[token] for step, token in zip(likely, tokens, strict=True)]
        return Reply(tokens, chosen, output.num_cached_tokens or 0, likely)

    def ask(self, prompt: list[int], output_tokens: int = 8, **options: Any) -> Reply:
        """A request by itself."""
        name = self.add(prompt, output_tokens, **options)
        self.finish()
        return self.reply(name)

    def abort(self, name: str) -> None:
        self._engine.abort_request([name])

    def reset(self, *, running: bool = False) -> bool:
        return self._engine.reset_prefix_cache(reset_running_requests=running)

    def forget(self, prompt: list[int], blocks: Iterable[int], **identity: Any) -> None:
        """Make gaps: these blocks of the prompt are cached no longer. `identity`: as of `block_keys`."""
        keys = self.block_keys(prompt, **identity)
        found = [self.pool.cached_block_hash_to_block.get_one_block(keys[index]) for index in blocks]
        self.pool.evict_blocks({block.block_id for block in found})

    def replace_block(self, prompt: list[int], index: int, other: int, **identity: Any) -> None:
        """Put another block of the prompt in a block's place, as if that had been registered without being computed."""
        keys, cache = self.block_keys(prompt, **identity), self.pool.cached_block_hash_to_block
        wrong = cache.get_one_block(keys[other])
        self.forget(prompt, [index], **identity)
        cache.insert(keys[index], wrong)

    def block_keys(
        self, prompt: list[int], salt: str | None = None, lora: LoRARequest | None = None, group: int = 0
    ) -> list[Any]:
        request = Request(
            "keys",
            prompt,
            SamplingParams(),
            None,
            lora_request=lora,
            cache_salt=salt,
            block_hasher=self.core.request_block_hasher,
        )
        return [make_block_hash_with_group_id(block_hash, group) for block_hash in request.block_hashes]

    def _make_recorder(self, vllm_config: VllmConfig, engine_index: int = 0) -> StatsRecorder:
        self.stats.append(StatsRecorder(vllm_config, engine_index))
        return self.stats[-1]


class ColdEngine(LiveEngine):
    """The oracle: stock vLLM that computes every prompt. What it was asked before it answers as it did then."""

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, scheduler=None, enable_prefix_caching=False, **options)
        self._known: dict[str, Reply] = {}

    def ask(self, prompt: list[int], output_tokens: int = 8, **options: Any) -> Reply:
        key = repr((prompt, output_tokens, sorted(options.items())))
        if key not in self._known:
            self._known[key] = super().ask(prompt, output_tokens, **options)
        return self._known[key]


def make_prompt(seed: int, tokens: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(8000) for _ in range(tokens)]


def assert_same(reply: Reply, cold: Reply) -> None:
    assert reply.tokens == cold.tokens
    assert reply.logprobs == pytest.approx(cold.logprobs, abs=2e-3)
