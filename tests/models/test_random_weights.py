from __future__ import annotations

import pytest
import torch
from random_weights import fill_at_random

SHAPES = {
    "model.layers.1.self_attn.qkv_proj.weight": ((256, 512), 512**-0.5),
    "model.layers.1.mlp.experts.w13_weight": ((4, 256, 512), 512**-0.5),
    "model.layers.1.mlp.experts.w2_weight": ((4, 512, 128), 0.3 * 128**-0.5),
    "model.layers.1.mlp.gate.weight": ((64, 512), 4 * 512**-0.5),
    "model.layers.1.mlp.shared_expert_gate.weight": ((1, 4096), 4096**-0.5),
    "model.layers.1.mlp.experts.w13_bias": ((4, 2048), 0.1),
    "model.layers.1.self_attn.sinks": ((4096,), 1.0),
    "model.embed_tokens.weight": ((512, 64), 0.1),
}


def fill(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    weights = torch.full(shape, torch.nan, dtype=torch.bfloat16)
    fill_at_random(name, weights)
    return weights.float()


@pytest.mark.parametrize(("name", "shape", "spread"), [(name, *each) for name, each in SHAPES.items()])
def test_weights_are_spread_by_their_name(name: str, shape: tuple[int, ...], spread: float) -> None:
    weights = fill(name, shape)
    assert weights.std() == pytest.approx(spread, rel=0.1)
    # In every process.
    assert torch.equal(weights, fill(name, shape))


def test_no_two_parameters_have_the_same_weights() -> None:
    first, second = (fill(f"model.layers.{layer}.mlp.down_proj.weight", (64, 64)) for layer in (0, 1))
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.1


@pytest.mark.parametrize("name", ["layers.0.input_layernorm.weight", "layers.0.self_attn.q_norm.weight", "norm.weight"])
def test_norms_stay_as_they_are_made(name: str) -> None:
    weights = torch.ones(8)
    fill_at_random(name, weights)
    assert torch.equal(weights, torch.ones(8))
