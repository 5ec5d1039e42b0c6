"""Holds and checks the options of `agentcache simulate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentcache.errors import InputError, suggest
from agentcache.models.catalog import SHAPE_PREFIX
from agentcache.models.published import find_known
from agentcache.models.shapes import SMALL
from agentcache.policy.gpus import match_gpu
from agentcache.policy.presets import PRESETS
from agentcache.run.checks import RunSettings, check_kv_tokens
from agentcache.sim.costs import find_costs, find_room

DEFAULT_MODEL = "llama-3.1-8b"
DEFAULT_GPU = "h200"
DEFAULT_BLOCK_SIZE = 16
# What vLLM takes for its server on an H100 or H200, and on newer GPUs of that size.
DEFAULT_MAX_NUM_BATCHED_TOKENS = 8192
DEFAULT_MAX_NUM_SEQS = 1024
DEFAULT_ROUTING = "agentcache"
VLLM_ROUTING = "least-loaded"
# How requests are shared among several engines: agentcache/sim/routing.py.
ROUTINGS = (DEFAULT_ROUTING, VLLM_ROUTING, "sticky")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings(RunSettings):
    """One field per option of `agentcache simulate`, which documents them.

    `model` and `gpu` name a preset, as in "llama-3.1-8b" and "h200", or what `profile` is of: a file, or a folder with
    one that fits.
    """

    model: str
    gpu: str
    kv_tokens: int | None = None
    profile: Path | None = None
    tensor_parallel_size: int = 1
    block_size: int = DEFAULT_BLOCK_SIZE
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    cpu_tokens: int = 0
    cpu_lazy: bool = False
    replicas: int = 1
    routing: str = DEFAULT_ROUTING

    def check(self) -> None:
        """Raise InputError for what is wrong on its own, before anything is loaded."""
        if not self.policies:
            raise InputError("simulate: give at least one --policy")
        self.check_run()
        find_costs(self.model, self.gpu, self.tensor_parallel_size, self.profile)
        for flag, value in (
            ("--block-size", self.block_size),
            ("--max-num-batched-tokens", self.max_num_batched_tokens),
            ("--max-num-seqs", self.max_num_seqs),
            ("--replicas", self.replicas),
        ):
            if value < 1:
                raise InputError(f"{flag} {value}: give at least 1")
        check_kv_tokens(self.cache_tokens if self.kv_tokens is None else self.kv_tokens)
        check_routing(self.routing)
        if self.cpu_tokens < 0:
            raise InputError(f"--cpu-tokens {self.cpu_tokens}: give 0 or more")
        if 0 < self.cpu_tokens < self.block_size * 2:
            raise InputError(
                f"--cpu-tokens {self.cpu_tokens}: give at least two blocks, of {self.block_size} tokens each"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens}: give at least --max-num-seqs, "
                f"which is {self.max_num_seqs}, or lower that"
            )

    @property
    def model_name(self) -> str:
        """The model as `resolve_model` knows it."""
        return name_model(self.model)

    @property
    def cache_tokens(self) -> int:
        """The tokens that the cache holds, in whole blocks; None takes what the GPU has room for."""
        room = self.kv_tokens
        if room is None:
            room = find_room(self.model, self.gpu, self.tensor_parallel_size, self.profile)
        return room // self.block_size * self.block_size


def check_routing(name: str) -> None:
    """Raise InputError for a way to share requests that there is not."""
    if name not in ROUTINGS:
        raise InputError(f"--routing {name}: choose from {', '.join(ROUTINGS)}{suggest(name, ROUTINGS)}")


def name_target(model: str, gpu: str, profile: Path | None) -> tuple[str, str]:
    """Return model and GPU by the names of presets, where they are typed as published, or as a driver calls them.

    A profile is of the model as it was served.
    """
    if profile is None:
        model = find_known(model) or model.removeprefix(SHAPE_PREFIX)
    return model, match_gpu(gpu) or gpu


def name_model(preset: str) -> str:
    """Return a preset's model as `resolve_model` knows it; any other is a name or folder as for vLLM."""
    return SHAPE_PREFIX + preset if preset in PRESETS and preset not in SMALL else preset
