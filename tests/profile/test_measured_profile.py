"""What was measured goes before the data sheet, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentcache.errors import InputError
from agentcache.policy import presets
from agentcache.policy.cost import CostModel, CostProfile, ProfileKey, StepProfile, read_profile, save_profile
from agentcache.policy.gpus import match_gpu
from agentcache.policy.presets import find_cost_profile, find_measured_profile, find_step_cost
from agentcache.policy.step_cost import Row, StepCost

KEY = ProfileKey(model="llama-3.1-8b", gpu="h200", tensor_parallel_size=1, dtype="bfloat16")
COST = StepCost(1e-3, 4e-3, 2e-5, 0.0, 1e-6, 1e-9, 3e-8, overlap=1.5)
MODEL = CostModel(k1=1e-7, k2=23e-6, k3=2e-7, k4=21e-6, k5=4.3e-10, k6=8.4e-10, intercept_s=2e-3)
PROFILE = CostProfile(
    key=KEY,
    measured=True,
    source="a test",
    batches=100,
    r_squared=0.9995,
    cost_model=MODEL,
    steps=StepProfile(count=200, r_squared=0.99, step_cost=COST),
)


@pytest.fixture
def profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(presets, "PROFILES", tmp_path)
    return tmp_path


def test_a_profile_goes_before_the_data_sheet(profiles: Path) -> None:
    analytic = find_step_cost("llama-3.1-8b", "h200")
    assert analytic.overlap is None
    assert find_measured_profile("llama-3.1-8b", "h200") is None
    save_profile(PROFILE, profiles)
    assert find_step_cost("llama-3.1-8b", "h200") == COST
    assert find_cost_profile("llama-3.1-8b", "h200") == PROFILE
    assert find_cost_profile("llama-3.1-8b", "h200").measured
    # Nothing else takes it.
    assert find_step_cost("llama-3.1-8b", "h200", 2).overlap is None
    assert not find_cost_profile("llama-3.1-8b", "h100").measured


# Medians of other runs on one H200 under vLLM 0.32: engine time of one prefill, and of a step of 64 decodes whose
# contexts grow from 1,024 to 1,792, alone and beside a chunk in the middle of a prompt of 8,192 tokens.
@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ([Row(1_024, 0)], 0.0251),
        ([Row(256, 768)], 0.0102),
        ([Row(10_240, 0)], 0.275),
        ([Row(8_192, 24_576)], 0.381),
        ([Row(2_560, 7_680)], 0.0787),
        ([Row(1, 1_408)] * 64, 0.00897),
        ([Row(1, 1_408)] * 64 + [Row(1_024, 3_584)], 0.0321),
        ([Row(1, 1_408)] * 64 + [Row(512, 3_840)], 0.0214),
    ],
)
def test_the_profile_of_the_h200_is_near_what_other_runs_took(rows: list[Row], seconds: float) -> None:
    profile = find_measured_profile("llama-3.1-8b", "h200")
    assert profile is not None
    assert profile.measured
    assert profile.steps is not None
    assert find_cost_profile("llama-3.1-8b", "h200") == profile
    assert find_step_cost("llama-3.1-8b", "h200") == profile.steps.step_cost
    assert profile.steps.step_cost.step_s(rows) == pytest.approx(seconds, rel=0.1)


def test_prefills_alone_leave_the_steps_to_the_data_sheet(profiles: Path) -> None:
    analytic = find_step_cost("llama-3.1-8b", "h200")
    save_profile(PROFILE.model_copy(update={"steps": None}), profiles)
    assert find_step_cost("llama-3.1-8b", "h200") == analytic
    assert find_cost_profile("llama-3.1-8b", "h200").cost_model == MODEL


def test_steps_survive_the_file_and_must_not_be_negative(profiles: Path) -> None:
    path = save_profile(PROFILE, profiles)
    assert read_profile(path) == PROFILE
    broken = json.loads(path.read_text())
    broken["steps"]["step_cost"]["pair_s"] = -1.0
    path.write_text(json.dumps(broken))
    with pytest.raises(InputError, match=r"steps\.step_cost: .*pair_s is -1\.0; must be finite and not negative"):
        find_step_cost("llama-3.1-8b", "h200")


@pytest.mark.parametrize(
    ("device", "gpu"),
    [("NVIDIA H200", "h200"), ("NVIDIA H20", "h20"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4", None)],
)
def test_gpus_are_known_by_what_the_driver_calls_them(device: str, gpu: str | None) -> None:
    assert match_gpu(device) == gpu
