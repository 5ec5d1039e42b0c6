"""Random weights that vLLM makes where they lie, as a load format: no checkpoint of many gigabytes is written and read.

vLLM's own dummy weights are no use here. They are below 0.001, those of norms as well, and all parameters begin with
the same numbers: all tokens are as likely as each other then, whatever the prompt says, and no wrong block is seen.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

LOAD_FORMAT = "seeded_random"
# What comes out of a matrix is about as large as what goes in.
GAIN = 1.0
# Less than a layer adds, so that a token's likelihood is of the context and not of the token before.
EMBEDDING = 0.1
# Rounding chooses other experts now and then, and must not move a reply by far: weights of experts are wide apart, as
# trained ones are, so that the last of those chosen has a share of some percent; and experts add less than attention.
ROUTER_GAIN = 4.0
EXPERT_GAIN = 0.3
BIAS = 0.1
# A state of a recurrent layer outlasts some tens of tokens.
DECAY = math.log(0.03)


def register_random_weights() -> None:
    """Let this process's engines take `load_format=LOAD_FORMAT`."""
    register_model_loader(LOAD_FORMAT)(RandomWeightsLoader)


class RandomWeightsLoader(BaseModelLoader):
    """Two processes on alike devices get equal weights: each parameter's are seeded by its name."""

    def download_model(self, model_config: ModelConfig) -> None:
        pass

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:  # noqa: ARG002 (vLLM's signature)
        for name, parameter in model.named_parameters():
            fill_at_random(name, parameter.data)


def fill_at_random(name: str, weights: torch.Tensor) -> None:
    """Fill the parameter of that name. A norm's and the offsets of decays stay as their layer made them."""
    if "norm" in name or name.endswith("dt_bias"):
        return
    if name.endswith("A_log"):
        weights.fill_(DECAY)
        return
    generator = torch.Generator(weights.device).manual_seed(zlib.crc32(name.encode()))
    weights.normal_(0.0, _find_spread(name, weights), generator=generator)


def _find_spread(name: str, weights: torch.Tensor) -> float:
    if "embed_tokens" in name:
        return EMBEDDING
    if name.endswith("sinks"):
        return 1.0
    # Those of experts are a matrix, a row an expert.
    if name.endswith("bias") or weights.dim() == 1:
        return BIAS
    return _find_gain(name) / math.sqrt(weights.shape[-1])


def _find_gain(name: str) -> float:
    if name.endswith((".gate.weight", ".router.weight")):
        return ROUTER_GAIN
    return EXPERT_GAIN if name.endswith("w2_weight") else GAIN


class Registered:
    """As `worker_extension_cls`: an engine's other workers may be spawned, and import this module for it."""

    register_random_weights()
