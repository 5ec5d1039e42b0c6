"""Runs vLLM in this process with our scheduler, one request or batch at a time, for measuring."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.engine.vllm.base import VllmConfig
from agentcache.engine.vllm.types import SamplingParams
from agentcache.errors import IntegrityError, ServerError, in_one_line
from agentcache.policy.step_fit import MeasuredStep
from agentcache.profile.bench_control import LOGGING_SCHEDULER, BenchControl, start_engine
from agentcache.server.arguments import build_arguments, make_engine_config

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
    """One engine. `control` holds its cache and knobs, `log` its steps."""

    def __init__(self, config: VllmConfig) -> None:
        """Start the engine. Raises ServerError when it does not come up."""
        began = time.monotonic()
        try:
            self.engine = start_engine(config)
        except Exception as error:
            raise ServerError(f"the engine did not start: {in_one_line(error)}") from error
        self.startup_s = time.monotonic() - began
        self.config = config
        self.control = BenchControl(self.engine)
        self.log = self.control.scheduler.step_log
        self.max_tokens: int = config.model_config.max_model_len
        self.max_seqs: int = config.scheduler_config.max_num_seqs
        # As its log tells it.
        self.kv_tokens: int | None = config.cache_config.kv_cache_size_tokens
        self.vocabulary = config.model_config.get_vocab_size()
        self._numbers = itertools.count()

    def close(self) -> None:
        """End the engine and give its memory back."""
        self.engine.engine_core.shutdown()

    def cache(self, tokens: Sequence[int]) -> None:
        """Compute the prompt, so that all its full blocks are cached."""
        self.time_prefill(tokens)

    def keep_only(self, tokens: Sequence[int], intervals: Iterable[tuple[int, int]] = ()) -> None:
        """Keep only some of the prompt's blocks: see BenchControl.keep_only."""
        self.control.keep_only(tokens, intervals)

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
            if not self.control.busy:
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
