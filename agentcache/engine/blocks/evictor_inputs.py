"""Derives costs from vLLM's configuration and ours: the evictor's inputs."""

from __future__ import annotations

from pathlib import Path

from agentcache.config import AgentCacheConfig
from agentcache.config_reader import CONFIG_KEY
from agentcache.engine.vllm.base import VllmConfig, current_platform
from agentcache.errors import InputError
from agentcache.models.catalog import short_name
from agentcache.models.geometry import read_geometry
from agentcache.models.shapes import SHAPES
from agentcache.policy.cost import CostModel, CostProfile, ProfileKey
from agentcache.policy.gpus import GPUS, match_gpu
from agentcache.policy.lifespan import Frequency, LifespanEstimator
from agentcache.policy.presets import estimate_cost_model, estimate_step_cost, find_measured_profile
from agentcache.policy.profile_folder import Wanted, pick_profile
from agentcache.policy.registry import EvictorInputs
from agentcache.policy.step_cost import StepCost

# For a GPU that has no data sheet here: what decides the order is only how the costs of two positions compare.
_OTHER_GPU = "h100"
# No engine schedules, launches and samples in less.
LEAST_STEP_S = 1e-3


def build_inputs(
    vllm_config: VllmConfig, config: AgentCacheConfig, num_blocks: int, block_size: int, *, fills_gaps: bool
) -> EvictorInputs:
    """Build the inputs. Raises InputError for a cost profile or a model's config that cannot be used."""
    tuning = config.tuning
    cost_model, step_cost = _find_costs(vllm_config, config)
    return EvictorInputs(
        num_blocks=num_blocks,
        recompute_cost=cost_model.recompute_cost(block_size),
        step_s=find_step_s(cost_model, step_cost),
        frequency=Frequency.from_turning_point(config.lifespan_s, tuning.reuse_probability, tuning.slope_ratio),
        lifespan=LifespanEstimator(tuning.lifespan_window),
        lambda_limit=tuning.lambda_limit,
        fills_gaps=fills_gaps,
    )


def find_cost_model(vllm_config: VllmConfig, config: AgentCacheConfig) -> CostModel:
    """Find the profile that the user names, else one that comes with agentcache, else an analytic cost model."""
    return _find_costs(vllm_config, config)[0]


def _find_costs(vllm_config: VllmConfig, config: AgentCacheConfig) -> tuple[CostModel, StepCost | None]:
    """Find that cost model and what a step takes, which an older profile does not say."""
    if (profile := find_profile(vllm_config, config)) is not None:
        return profile.cost_model, None if profile.steps is None else profile.steps.step_cost
    geometry = read_geometry(vllm_config.model_config.hf_text_config)
    step_cost = estimate_step_cost(geometry, GPUS[find_gpu(config)], vllm_config.parallel_config.tensor_parallel_size)
    return estimate_cost_model(step_cost).cost_model, step_cost


def find_step_s(cost_model: CostModel, step_cost: StepCost | None) -> float:
    """Find the seconds of a step with one token. The fit alone may err to below nothing: the dearer estimate counts."""
    decode_s = 0.0 if step_cost is None else step_cost.decode_s([0])
    return max(cost_model.intercept_s, decode_s, LEAST_STEP_S)


def describe_costs(vllm_config: VllmConfig, config: AgentCacheConfig) -> str:
    """Say where that cost model comes from."""
    if (own := find_own_profile(vllm_config, config)) is not None:
        return f"measured ({own[0]})"
    if (profile := find_profile(vllm_config, config)) is not None:
        return f"measured ({profile.source})"
    return f"estimated from the data sheet of {find_gpu(config)} (agentcache profile measures them)"


def find_profile(vllm_config: VllmConfig, config: AgentCacheConfig) -> CostProfile | None:
    """Find the profile that the user names, else one that comes with agentcache; None without either."""
    if (own := find_own_profile(vllm_config, config)) is not None:
        return own[1]
    geometry = read_geometry(vllm_config.model_config.hf_text_config)
    name = next((name for name, known in SHAPES.items() if known.geometry == geometry), None)
    ranks = vllm_config.parallel_config.tensor_parallel_size
    return find_measured_profile(name, find_gpu(config), ranks) if name else None


def find_own_profile(vllm_config: VllmConfig, config: AgentCacheConfig) -> tuple[Path, CostProfile] | None:
    """Find the profile that the user names, and its file; None without one. Raises InputError if of another machine.

    Of a folder it is the one that fits, model included. The model of a file is not checked: a folder may have been
    renamed since.
    """
    if config.cost_profile is None:
        return None
    place = f"additional_config: {CONFIG_KEY}.cost_profile"
    names = _list_names(vllm_config)
    key = make_profile_key(names[0], config.gpu, vllm_config)
    try:
        file, profile = pick_profile(
            Path(config.cost_profile), Wanted(names, key.gpu, key.tensor_parallel_size, key.dtype)
        )
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    if (here := key.model_copy(update={"model": profile.key.model})) != profile.key:
        raise InputError(
            f"{place}: {file} is of {profile.key}, and this engine is {here}; measure it with agentcache profile"
        )
    return file, profile


def _list_names(vllm_config: VllmConfig) -> list[str]:
    """List what a profile of the model may call it: what it was served as, and what its folder is called."""
    model = vllm_config.model_config
    served = model.served_model_name
    names = [served] if isinstance(served, str) else [*(served or ())]
    return [*dict.fromkeys(short_name(name) for name in (*names, model.model))]


def make_profile_key(model: str, gpu: str | None, vllm_config: VllmConfig) -> ProfileKey:
    """Make the key of a profile that is measured on an engine; None takes the name of this machine's GPU."""
    return ProfileKey(
        model=model,
        gpu=gpu or _name_gpu(),
        tensor_parallel_size=vllm_config.parallel_config.tensor_parallel_size,
        dtype=str(vllm_config.model_config.dtype).removeprefix("torch."),
    )


def _name_gpu() -> str:
    if current_platform.is_cpu():
        return "cpu"
    name = str(current_platform.get_device_name())
    return match_gpu(name) or name.lower()


def find_gpu(config: AgentCacheConfig) -> str:
    """Find the GPU whose data sheet stands for that of this engine."""
    return name if (name := config.gpu or _name_gpu()) in GPUS else _OTHER_GPU


def find_cost_obstacle(vllm_config: VllmConfig) -> str | None:
    """Say why the cost of the model's blocks cannot be known, as the beginning of a sentence; None if it can."""
    try:
        read_geometry(vllm_config.model_config.hf_text_config)
    except InputError as error:
        sentence = str(error)
        return sentence[0].upper() + sentence[1:]
    return None
