"""How a block of KV lies in memory: in as many pieces as the model has layers, each copied by itself."""

from __future__ import annotations

from dataclasses import dataclass

from agentcache.engine.token_bytes import count_layer_bytes
from agentcache.engine.vllm.config import VllmConfig
from agentcache.errors import InputError
from agentcache.models.geometry import read_geometry


@dataclass(frozen=True, slots=True)
class LinkLayout:
    """The pieces of a block on one GPU, and the bytes of each."""

    pieces: int
    piece_bytes: int

    @property
    def block_bytes(self) -> int:
        """The bytes of all pieces."""
        return self.pieces * self.piece_bytes


def find_layout(config: VllmConfig) -> LinkLayout:
    """Find how the engine's blocks will lie, unless its attention backend wants another block size at the start.

    Raises InputError for a model whose blocks are not all alike.
    """
    geometry = read_geometry(config.model_config.hf_text_config)
    if geometry.recurrent is not None or [layers.window for layers in geometry.attention] != [None]:
        raise InputError("no policy steers the host's memory of a model with windows or several kinds of layers")
    model, parallel = config.model_config, config.parallel_config
    token_bytes = count_layer_bytes(config, model.get_num_kv_heads(parallel))
    return LinkLayout(model.get_num_layers(parallel), token_bytes * config.cache_config.block_size)
