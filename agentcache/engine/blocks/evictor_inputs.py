"""What the evictor is to know, from vLLM's configuration and ours."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from agentcache.config import AgentCacheConfig
from agentcache.models.shapes import SHAPES, Shape
from agentcache.policy.cost import CostModel
from agentcache.policy.frequency import Frequency
from agentcache.policy.inputs import EvictorInputs
from agentcache.policy.lifespan import LambdaBounds
from agentcache.policy.presets import (
    GPUS,
    estimate_cost_model,
    estimate_step_cost,
    find_measured_profile,
    match_gpu,
)
from agentcache.policy.return_time import Learning

# For a GPU that has no data sheet here: what decides the order is only how the costs of two positions compare.
_OTHER_GPU = "h100"


def build_inputs(
    vllm_config: VllmConfig, config: AgentCacheConfig, num_blocks: int, block_size: int, *, fills_gaps: bool
) -> EvictorInputs:
    """Build the inputs with the measured cost model of this model and GPU if there is one, else an analytic one."""
    shape, gpu = _read_shape(vllm_config), config.gpu or _find_gpu()
    ranks = vllm_config.parallel_config.tensor_parallel_size
    return EvictorInputs(
        num_blocks=num_blocks,
        recompute_cost=_find_cost_model(shape, gpu, ranks).recompute_cost(block_size),
        frequency=Frequency.from_turning_point(config.lifespan_s, config.reuse_probability, config.slope_ratio),
        lifespan_window=config.lifespan_window,
        lambda_bounds=LambdaBounds(1 / config.lambda_limit, config.lambda_limit),
        learning=Learning(**config.grouped.model_dump()),
        fills_gaps=fills_gaps,
    )


def _find_cost_model(shape: Shape, gpu: str, ranks: int) -> CostModel:
    name = next((name for name, known in SHAPES.items() if known.costs_as(shape)), None)
    measured = find_measured_profile(name, gpu, ranks) if name else None
    if measured is not None:
        return measured.cost_model
    return estimate_cost_model(estimate_step_cost(shape, GPUS[gpu], ranks)).cost_model


def _find_gpu() -> str:
    if current_platform.is_cpu():
        return "cpu"
    return match_gpu(str(current_platform.get_device_name())) or _OTHER_GPU


def _read_shape(vllm_config: VllmConfig) -> Shape:
    model = vllm_config.model_config
    text: Any = model.hf_text_config
    return Shape(
        hidden=model.get_hidden_size(),
        # Mixtures of experts name it otherwise; four times the hidden size is what dense models of old have.
        intermediate=getattr(text, "intermediate_size", None) or 4 * model.get_hidden_size(),
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=model.get_total_num_kv_heads(),
        head_dim=model.get_head_size(),
        vocabulary=model.get_vocab_size(),
        max_tokens=model.max_model_len,
        tied_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
    )
