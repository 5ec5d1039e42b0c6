"""Finds what a simulated GPU takes for a step: by a profile that the user gives, else by the presets."""

from __future__ import annotations

from pathlib import Path

from agentcache.errors import InputError
from agentcache.models.catalog import short_name
from agentcache.policy.cost import CostProfile
from agentcache.policy.presets import PRESETS, estimate_kv_tokens, find_cost_profile, find_step_cost
from agentcache.policy.profile_folder import Wanted, pick_profile
from agentcache.policy.step_cost import StepCost


def find_costs(model: str, gpu: str, ranks: int, profile: Path | None) -> tuple[StepCost, CostProfile]:
    """Find what steps take, and the profile that policies go by. Raises InputError for what fits model or GPU not.

    `profile` is a file, or a folder with one that fits.
    """
    if profile is None:
        return find_step_cost(model, gpu, ranks), find_cost_profile(model, gpu, ranks)
    file, own = _find_own(model, gpu, ranks, profile)
    if own.steps is None:
        raise InputError(f"--profile {file}: has no steps to simulate by; measure it again with agentcache profile")
    return own.steps.step_cost, own


def name_costs(model: str, gpu: str, ranks: int, profile: Path | None) -> dict[str, str]:
    """Return the knobs by which policies value blocks as on the GPU that is simulated, not on the one at hand."""
    if profile is None:
        return {"gpu": gpu}
    return {"gpu": gpu, "cost_profile": str(_find_own(model, gpu, ranks, profile)[0])}


def name_dtype(model: str, gpu: str, ranks: int, profile: Path | None) -> str:
    """Return vLLM's --dtype for the engine that is simulated: that of the one that was measured."""
    return "auto" if profile is None else _find_own(model, gpu, ranks, profile)[1].key.dtype


def find_room(model: str, gpu: str, ranks: int, profile: Path | None) -> int:
    """Return the tokens that the cache of one engine has room for: as measured, else by the GPU's data sheet.

    Raises InputError where that is not known.
    """
    file, own = (None, None) if profile is None else _find_own(model, gpu, ranks, profile)
    if own is not None and own.kv_tokens is not None:
        return own.kv_tokens
    if own is None or gpu in PRESETS.get(model, (None, ()))[1]:
        return estimate_kv_tokens(model, gpu, ranks)
    untold = "" if file is None else f" ({file.name} does not tell it: an older version measured it)"
    raise InputError(f"--kv-tokens: give it, what a GPU has room for beside {model} is not known{untold}")


def _find_own(model: str, gpu: str, ranks: int, path: Path) -> tuple[Path, CostProfile]:
    try:
        file, own = pick_profile(path, Wanted((short_name(model),), gpu, ranks))
    except InputError as error:
        raise InputError(f"--profile {error}") from None
    if (own.key.gpu, own.key.tensor_parallel_size) != (gpu, ranks):
        raise InputError(
            f"--profile {file}: is of {own.key}; give --gpu {own.key.gpu} --tensor-parallel-size "
            f"{own.key.tensor_parallel_size}, or another profile"
        )
    return file, own
