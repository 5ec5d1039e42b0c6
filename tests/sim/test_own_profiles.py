from __future__ import annotations

import re
from pathlib import Path

import pytest
from made_command import make_settings

from agentcache.errors import InputError
from agentcache.policy.cost import CostProfile, ProfileKey, read_profile, save_profile
from agentcache.policy.presets import PROFILES, estimate_kv_tokens, find_step_cost
from agentcache.sim.command import simulate
from agentcache.sim.costs import find_costs, find_room, name_costs

_SHIPPED = next(PROFILES.glob("*.json"))


def _save(folder: Path, **changes: object) -> Path:
    return save_profile(CostProfile.model_validate({**read_profile(_SHIPPED).model_dump(), **changes}), folder)


def test_a_profile_of_one_s_own_gives_the_steps(tmp_path: Path) -> None:
    shipped = read_profile(_SHIPPED)
    assert shipped.steps is not None
    slow = {**shipped.steps.model_dump(), "step_cost": {**shipped.steps.model_dump()["step_cost"], "overhead_s": 9.0}}
    step_cost, profile = find_costs("any/model", "h200", 1, _save(tmp_path, steps=slow))
    assert step_cost.overhead_s == 9.0
    assert profile.cost_model == shipped.cost_model
    assert find_costs("llama-3.1-8b", "h200", 1, None)[0] == find_step_cost("llama-3.1-8b", "h200")


def test_a_profile_of_another_gpu_or_without_steps_is_refused(tmp_path: Path) -> None:
    other = ProfileKey(model="m", gpu="h100", tensor_parallel_size=2, dtype="bfloat16")
    with pytest.raises(InputError, match=r"--profile .* give --gpu h100 --tensor-parallel-size 2"):
        make_settings(tmp_path / "out", profile=_save(tmp_path, key=other.model_dump())).check()
    with pytest.raises(InputError, match=r"--profile .*: has no steps to simulate by"):
        make_settings(tmp_path / "out", profile=_save(tmp_path, steps=None)).check()
    with pytest.raises(InputError, match=r"--profile .*nowhere: no such file"):
        make_settings(tmp_path / "out", profile=tmp_path / "nowhere").check()


def test_the_cache_takes_what_the_gpu_has_room_for(tmp_path: Path) -> None:
    assert make_settings(tmp_path, kv_tokens=None).cache_tokens == estimate_kv_tokens("llama-3.1-8b", "h200") // 16 * 16
    assert 780_000 < estimate_kv_tokens("llama-3.1-8b", "h200") < 900_000
    settings = make_settings(tmp_path / "out", kv_tokens=None, model="any/model", profile=_save(tmp_path))
    with pytest.raises(InputError, match=re.escape("--kv-tokens: give it, what a GPU has room for beside any/model")):
        settings.check()


def test_the_cache_takes_what_the_measured_engine_had_room_for(tmp_path: Path) -> None:
    key = ProfileKey(model="any/model", gpu="nvidia a100", tensor_parallel_size=1, dtype="bfloat16").model_dump()
    measured = _save(tmp_path, key=key, kv_tokens=100_003)
    settings = make_settings(
        tmp_path / "out", kv_tokens=None, model="any/model", gpu="nvidia a100", profile=measured.parent
    )
    settings.check()
    assert settings.cache_tokens == 100_000
    assert find_room("llama-3.1-8b", "h200", 1, _save(tmp_path)) == estimate_kv_tokens("llama-3.1-8b", "h200")
    assert find_room("llama-3.1-8b", "h200", 1, _save(tmp_path, kv_tokens=7)) == 7


def test_of_a_folder_the_profile_that_fits_is_taken(tmp_path: Path) -> None:
    key = ProfileKey(model="m", gpu="h100", tensor_parallel_size=2, dtype="bfloat16")
    file = _save(tmp_path, key=key.model_dump())
    for other in ({"model": "n"}, {"gpu": "h200"}, {"tensor_parallel_size": 1}):
        _save(tmp_path, key=key.model_copy(update=other).model_dump())
    assert find_costs("shape:m", "h100", 2, tmp_path)[1].key == key
    assert name_costs("m", "h100", 2, tmp_path) == {"gpu": "h100", "cost_profile": str(file)}
    second = _save(tmp_path, key=key.model_copy(update={"dtype": "float16"}).model_dump())
    message = f"--profile {tmp_path}: has 2 profiles of m on h100, tensor parallel size 2: {file.name}, {second.name}; "
    with pytest.raises(InputError, match=re.escape(message)):
        find_costs("m", "h100", 2, tmp_path)


def test_a_folder_without_a_fitting_profile_is_refused(tmp_path: Path) -> None:
    message = f"--profile {tmp_path}: has no profile of m on h100, tensor parallel size 2 (there are no others)"
    with pytest.raises(InputError, match=re.escape(message)):
        find_costs("m", "h100", 2, tmp_path)
    other = _save(tmp_path)
    message = f"({other.name} is of llama-3.1-8b on h200, tensor parallel size 1, bfloat16); measure it with"
    with pytest.raises(InputError, match=re.escape(message)):
        find_costs("m", "h100", 2, tmp_path)


@pytest.mark.usefixtures("without_plots")
def test_the_engine_has_the_dtype_that_was_measured(tmp_path: Path) -> None:
    key = ProfileKey(model="tiny", gpu="cpu", tensor_parallel_size=1, dtype="float32")
    _save(tmp_path / "profiles", key=key.model_dump(), kv_tokens=50_000)
    own = {"model": "tiny", "gpu": "cpu", "profile": tmp_path / "profiles", "kv_tokens": None, "jobs": 1}
    status, summary = simulate(make_settings(tmp_path / "run", **own))
    assert status == 0
    assert summary.policies["lru"].finished == 1
