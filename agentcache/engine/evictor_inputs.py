"""What the evictor is to know, from vLLM's configuration and ours."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from agentcache.config import AgentCacheConfig
from agentcache.models.shapes import Shape
from agentcache.policy.frequency import Frequency
from agentcache.policy.inputs import EvictorInputs
from agentcache.policy.lifespan import LambdaBounds
from agentcache.policy.presets import GPUS, estimate_cost_model, estimate_step_cost, match_gpu

# For a GPU that has no data sheet here: what decides the order is only how the costs of two positions compare.
_OTHER_GPU = "h100"


def build_inputs(vllm_config: VllmConfig, config: AgentCacheConfig, num_blocks: int, block_size: int) -> EvictorInputs:
    """The cost model is analytic: of the model's geometry and the GPU's data sheet."""
    hardware = GPUS[config.gpu or _find_gpu()]
    step_cost = estimate_step_cost(_read_shape(vllm_config), hardware, vllm_config.parallel_config.tensor_parallel_size)
    return EvictorInputs(
        num_blocks=num_blocks,
        loss=estimate_cost_model(step_cost).cost_model.loss_cost(block_size),
        frequency=Frequency.from_turning_point(config.lifespan_s, config.reuse_probability, config.slope_ratio),
        lifespan_window=config.lifespan_window,
        lambda_bounds=LambdaBounds(1 / config.lambda_limit, config.lambda_limit),
    )


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
