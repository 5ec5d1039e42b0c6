"""Geometries of models: what decides memory and speed, without the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentcache.models.geometry import AttentionLayers, Geometry
from agentcache.models.published import PUBLISHED, PublishedShape


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's dimensions. `vocabulary` may exceed our tokenizer's: the rest of the table is never used."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_tokens: int
    tied_embeddings: bool

    @property
    def geometry(self) -> Geometry:
        """Return what decides its speed."""
        projections = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        parameters = self.layers * (projections + 3 * self.hidden * self.intermediate + 2 * self.hidden)
        attention = AttentionLayers(
            layers=self.layers,
            window=None,
            pair_products=2 * self.heads * self.head_dim,
            kv_heads=self.kv_heads,
            head_numbers=2 * self.head_dim,
        )
        return Geometry(self.hidden, self.layers, parameters, parameters, (attention,), self.vocabulary)

    @property
    def model_type(self) -> str:
        """The name by which transformers knows the config's class."""
        return "llama"

    @property
    def options(self) -> tuple[str, ...]:
        """What vLLM's command line needs beside the config: nothing."""
        return ()

    def as_config(self, *, end_of_turn: int, padding: int, dtype: str) -> dict[str, Any]:
        """Return the keyword arguments of the config's class."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.max_tokens,
            "tie_word_embeddings": self.tied_embeddings,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
            "bos_token_id": None,
            "eos_token_id": end_of_turn,
            "pad_token_id": padding,
            "dtype": dtype,
        }


# Small enough for two CPU cores, with contexts long enough for agents. Its vocabulary is our tokenizer's.
TINY = Shape(128, 256, 2, 4, 2, 32, 8192, 32_768, tied_embeddings=True)

# Wide enough that a prefill costs, beside decodes and tools, what it costs in life: see docs/results/demo.md.
DEMO = Shape(512, 4096, 1, 2, 1, 128, 8192, 32_768, tied_embeddings=True)
# Models with weights, which run on the CPU, by name.
SMALL = {"tiny": TINY, "demo": DEMO}

# Source: config.json of meta-llama/Llama-3.1-8B-Instruct and -70B-Instruct.
SHAPES: dict[str, Shape | PublishedShape] = {
    "llama-3.1-8b": Shape(4096, 14336, 32, 32, 8, 128, 128_256, 131_072, tied_embeddings=False),
    "llama-3.1-70b": Shape(8192, 28672, 80, 64, 8, 128, 128_256, 131_072, tied_embeddings=False),
    **PUBLISHED,
}
