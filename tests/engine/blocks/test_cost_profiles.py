"""Cost models of the engine's own model: the user's profile, one that comes with agentcache, or an analytic one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lone_scheduler import BLOCK_SIZE, make_config
from vllm.config import VllmConfig

from agentcache.config_reader import read_config
from agentcache.engine.blocks.evictor_inputs import LEAST_STEP_S, build_inputs, describe_costs, find_step_s
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.errors import InputError
from agentcache.models.shapes import SHAPES, TINY
from agentcache.policy.cost import CostModel, CostProfile, ProfileKey, save_profile
from agentcache.policy.gpus import GPUS
from agentcache.policy.presets import estimate_cost_model, estimate_step_cost
from agentcache.policy.price import RecomputeCost

KEY = ProfileKey(model="mine", gpu="cpu", tensor_parallel_size=1, dtype="bfloat16")
MINE = CostModel(k1=1e-6, k2=3e-4, k3=1e-6, k4=3e-4, k5=2e-8, k6=2e-8, intercept_s=1e-3)


def save(folder: Path, **other: Any) -> str:
    key = KEY.model_copy(update=other)
    profile = CostProfile(key=key, measured=True, source="test", batches=20, r_squared=0.999, cost_model=MINE)
    return str(save_profile(profile, folder))


def find_cost(config: VllmConfig) -> RecomputeCost:
    ours = read_config(config.additional_config)
    return build_inputs(config, ours, num_blocks=100, block_size=BLOCK_SIZE, fills_gaps=True).recompute_cost


def test_a_profile_of_the_users_own_goes_first(tiny_model_path: str, tmp_path: Path) -> None:
    config = make_config(tiny_model_path, SCHEDULER_CLASS, cost_profile=save(tmp_path))
    assert find_cost(config) == MINE.recompute_cost(BLOCK_SIZE)


def test_without_a_profile_costs_come_from_the_config(tiny_model_path: str) -> None:
    analytic = estimate_cost_model(estimate_step_cost(TINY.geometry, GPUS["cpu"])).cost_model
    assert find_cost(make_config(tiny_model_path, SCHEDULER_CLASS)) == analytic.recompute_cost(BLOCK_SIZE)


@pytest.mark.parametrize("other", [{"gpu": "h200"}, {"tensor_parallel_size": 2}, {"dtype": "float32"}])
def test_a_profile_of_another_machine_is_refused(tiny_model_path: str, tmp_path: Path, other: dict[str, Any]) -> None:
    path = save(tmp_path, **other)
    with pytest.raises(InputError) as caught:
        find_cost(make_config(tiny_model_path, SCHEDULER_CLASS, cost_profile=path))
    text = (
        f"additional_config: agentcache.cost_profile: {path} is of {KEY.model_copy(update=other)}, and this engine is "
    )
    assert str(caught.value) == f"{text}{KEY}; measure it with agentcache profile"


def test_of_a_folder_the_profile_that_fits_is_taken(tiny_model_path: str, tmp_path: Path) -> None:
    name = Path(tiny_model_path).name
    file = save(tmp_path, model=name)
    for other in ({"model": "another"}, {"model": name, "dtype": "float32"}, {"model": name, "gpu": "h200"}):
        save(tmp_path, **other)
    (tmp_path / "notes.json").write_text("{}")
    config = make_config(tiny_model_path, SCHEDULER_CLASS, cost_profile=str(tmp_path))
    assert find_cost(config) == MINE.recompute_cost(BLOCK_SIZE)
    assert describe_costs(config, read_config(config.additional_config)) == f"measured ({file})"


def test_a_folder_without_a_fitting_profile_is_refused(tiny_model_path: str, tmp_path: Path) -> None:
    name = Path(tiny_model_path).name
    save(tmp_path, model=name, gpu="h200")
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        find_cost(make_config(tiny_model_path, SCHEDULER_CLASS, cost_profile=str(tmp_path)))
    text = str(caught.value)
    assert text.startswith(f"additional_config: agentcache.cost_profile: {tmp_path}: has no profile of ")
    assert f"{name} on cpu, tensor parallel size 1, bfloat16 ({name}_h200_tp1_bfloat16.json is of {name}" in text
    assert text.endswith("; not a profile: notes.json); measure it with agentcache profile, or name a file")


def test_no_step_is_cheaper_than_the_model_s_weights_allow() -> None:
    """The fit to prefills knows little of a step with one token: for some models its intercept is below nothing."""
    step_costs = [estimate_step_cost(shape.geometry, gpu) for shape in SHAPES.values() for gpu in GPUS.values()]
    fits = [estimate_cost_model(step_cost).cost_model for step_cost in step_costs]
    assert any(fit.intercept_s < 0 for fit in fits)
    for step_cost, fit in zip(step_costs, fits, strict=True):
        assert find_step_s(fit, step_cost) >= step_cost.weights_read_s
        assert find_step_s(fit, None) >= LEAST_STEP_S
