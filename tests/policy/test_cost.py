from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.errors import InputError
from agentcache.policy.cost import (
    CostModel,
    CostProfile,
    PrefillBatch,
    ProfileKey,
    RecomputeCost,
    fit_cost_model,
    read_profile,
    save_profile,
)

# About Llama-3.1-8B on an H200.
MODEL = CostModel(k1=1e-7, k2=23e-6, k3=2e-7, k4=21e-6, k5=4.3e-10, k6=8.4e-10, intercept_s=2e-3)
KEY = ProfileKey(model="meta-llama/Llama-3.1-8B", gpu="h200", tensor_parallel_size=1, dtype="bfloat16")
PROFILE = CostProfile(key=KEY, measured=True, source="a test", batches=100, r_squared=0.9995, cost_model=MODEL)

tokens = st.integers(0, 100_000)


def make_batches(count: int, noise: float = 0.0) -> list[PrefillBatch]:
    random = np.random.default_rng(7)
    segments = random.integers(0, 8192, (count, 4)).tolist()
    factors = 1 + noise * random.standard_normal(count)
    return [
        PrefillBatch(l1, q1, l2, q2, MODEL.predict(l1, q1, l2, q2) * factor)
        for (l1, q1, l2, q2), factor in zip(segments, factors, strict=True)
    ]


def test_predict_adds_up_the_terms() -> None:
    model = CostModel(k1=1, k2=10, k3=100, k4=1000, k5=1e4, k6=1e5, intercept_s=0.5)
    assert model.predict(1, 2, 3, 4) == 1 + 20 + 300 + 4000 + 9e4 + 1e5 * 4 * 10 + 0.5


def test_fit_recovers_planted_coefficients_exactly() -> None:
    fitted = fit_cost_model(make_batches(200))
    assert fitted.cost_model.model_dump() == pytest.approx(MODEL.model_dump(), rel=1e-6, abs=1e-15)
    assert fitted.r_squared == pytest.approx(1, abs=1e-12)


def test_fit_recovers_planted_coefficients_from_noisy_batches() -> None:
    fitted = fit_cost_model(make_batches(1100, noise=0.01))
    assert fitted.r_squared > 0.999
    for name in ("k2", "k4", "k5", "k6"):
        assert getattr(fitted.cost_model, name) == pytest.approx(getattr(MODEL, name), rel=0.03)


def test_residuals_are_measured_minus_predicted_worst_first() -> None:
    batches = make_batches(200)
    slow = batches[17]._replace(seconds=batches[17].seconds + 0.5)
    batches[17] = slow
    fitted = fit_cost_model(batches)
    assert fitted.residuals[0].batch == slow
    assert 0.4 < fitted.residuals[0].seconds < 0.5
    assert len(fitted.residuals) == 200
    sizes = [abs(residual.seconds) for residual in fitted.residuals]
    assert sizes == sorted(sizes, reverse=True)
    for batch, seconds in fitted.residuals[:3]:
        assert seconds == pytest.approx(batch.seconds - fitted.cost_model.predict(*batch[:4]))
    errors = np.array([residual.seconds for residual in fitted.residuals])
    measured = np.array([batch.seconds for batch in batches])
    assert fitted.r_squared == pytest.approx(1 - (errors**2).mean() / measured.var())


@pytest.mark.parametrize("segment", ["l1", "q1", "l2", "q2"])
@pytest.mark.parametrize("length", [0, 512])
def test_a_segment_that_never_varies_is_named(segment: str, length: int) -> None:
    batches = [batch._replace(**{segment: length}) for batch in make_batches(100)]
    with pytest.raises(
        InputError, match=rf"do not tell .*\b{segment}\b.* apart \({segment} is {length} in every batch\)"
    ):
        fit_cost_model(batches)


def test_segments_that_move_together_are_named() -> None:
    batches = [batch._replace(q2=0, l2=2 * batch.l1) for batch in make_batches(100)]
    with pytest.raises(InputError) as caught:
        fit_cost_model(batches)
    assert "do not tell l1, l2, q2, q2·(l1+q1+l2+q2) apart (q2 is 0 in every batch)" in str(caught.value)


@given(before=tokens, block_tokens=st.integers(1, 512), l2=st.integers(512, 100_000), q2=tokens)
def test_recompute_cost_is_what_the_model_adds_for_a_lost_block(
    before: int, block_tokens: int, l2: int, q2: int
) -> None:
    # However the tokens before the block are split into cached and computed ones.
    for l1, q1 in ((before, 0), (before // 3, before - before // 3)):
        kept = MODEL.predict(l1, q1, l2, q2)
        lost = MODEL.predict(l1, q1 + block_tokens, l2 - block_tokens, q2)
        cost = MODEL.recompute_cost(block_tokens).at(before + block_tokens)
        assert cost == pytest.approx(lost - kept, rel=1e-6, abs=1e-12 * lost)


@given(before=tokens)
def test_one_token_costs_what_the_paper_says(before: int) -> None:
    expected = 2 * MODEL.k5 * before + (MODEL.k2 - MODEL.k3 + MODEL.k5)
    assert MODEL.recompute_cost(1).at(before + 1) == pytest.approx(expected)


def test_a_block_costs_as_much_as_its_tokens_one_by_one() -> None:
    # Losing the first token of a cached segment, then the next, ends where losing the block does.
    one_by_one = sum(MODEL.recompute_cost(1).at(position) for position in range(1009, 1025))
    assert MODEL.recompute_cost(16).at(1024) == pytest.approx(one_by_one)


def test_cost_never_falls_below_the_floor() -> None:
    cost = RecomputeCost(slope_s=1e-3, base_s=-1.0, floor_s=0.25)
    assert [cost.at(position) for position in (0, 1000, 1250, 2000)] == pytest.approx([0.25, 0.25, 0.25, 1.0])
    assert MODEL.model_copy(update={"k2": -1.0}).recompute_cost(16).at(16) > 0


def test_profile_survives_the_file(tmp_path: Path) -> None:
    path = save_profile(PROFILE, tmp_path / "profiles")
    assert path == tmp_path / "profiles" / "meta-llama-Llama-3.1-8B_h200_tp1_bfloat16.json"
    assert read_profile(path) == PROFILE
    assert json.loads(path.read_text())["measured"] is True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost_model": {"k1": 1.0}}, "not a cost profile: cost_model.k2: Field required"),
        ({"surprise": 1}, "not a cost profile: surprise: "),
        ({"r_squared": 1.5}, "not a cost profile: r_squared: "),
    ],
)
def test_a_broken_profile_is_answered_with_its_field(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = save_profile(PROFILE, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message) as caught:
        read_profile(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_profile_or_one_not_json_ends_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: no such file; name a cost profile"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{\n\n")
    with pytest.raises(InputError, match=r"bad\.json: not a cost profile: file: Invalid JSON") as caught:
        read_profile(tmp_path / "bad.json")
    assert "\n" not in str(caught.value)
