"""What steps take in a simulation: as a profile of one's own says, else as the presets do."""

from __future__ import annotations

from pathlib import Path

from agentcache.errors import InputError
from agentcache.policy.cost import CostProfile, read_profile
from agentcache.policy.presets import find_cost_profile, find_step_cost
from agentcache.policy.step_cost import StepCost


def find_costs(model: str, gpu: str, ranks: int, profile: Path | None) -> tuple[StepCost, CostProfile]:
    """Find what steps take, and the profile that policies go by. Raises InputError for what fits model or GPU not."""
    if profile is None:
        return find_step_cost(model, gpu, ranks), find_cost_profile(model, gpu, ranks)
    try:
        own = read_profile(profile)
    except InputError as error:
        raise InputError(f"--profile {error}") from None
    if (own.key.gpu, own.key.tensor_parallel_size) != (gpu, ranks):
        raise InputError(
            f"--profile {profile}: is of {own.key}; give --gpu {own.key.gpu} --tensor-parallel-size "
            f"{own.key.tensor_parallel_size}, or another profile"
        )
    if own.steps is None:
        raise InputError(f"--profile {profile}: has no steps to simulate by; measure it again with agentcache profile")
    return own.steps.step_cost, own


def name_costs(gpu: str, profile: Path | None) -> dict[str, str]:
    """Return the knobs by which policies value blocks as on the GPU that is simulated, not on the one at hand."""
    return {"gpu": gpu} if profile is None else {"gpu": gpu, "cost_profile": str(profile)}
