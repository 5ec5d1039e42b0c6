"""Lists the geometries of models, which decide memory and speed, without their weights."""

from __future__ import annotations

from agentcache.models.published import PUBLISHED, Shape, make_shape


def _make_llama(
    hidden: int,
    intermediate: int,
    *,
    layers: int,
    heads: tuple[int, int, int],
    vocabulary: int,
    max_tokens: int,
    tied_embeddings: bool,
) -> Shape:
    """Make a Llama. `heads` are those of queries, those of keys, and their width.

    `vocabulary` may exceed our tokenizer's: the rest of the table is never used.
    """
    return make_shape(
        "LlamaForCausalLM",
        "llama",
        "meta-llama",
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=heads[2],
        vocab_size=vocabulary,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=tied_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    )


# Small enough for two CPU cores, with contexts long enough for agents. Its vocabulary is our tokenizer's.
TINY = _make_llama(128, 256, layers=2, heads=(4, 2, 32), vocabulary=8192, max_tokens=32_768, tied_embeddings=True)

# Wide enough that a prefill costs, beside decodes and tools, what it costs in life: see docs/results/demo.md.
DEMO = _make_llama(512, 4096, layers=1, heads=(2, 1, 128), vocabulary=8192, max_tokens=32_768, tied_embeddings=True)
# Models with weights, which run on the CPU, by name.
SMALL = {"tiny": TINY, "demo": DEMO}

# Source: config.json of meta-llama/Llama-3.1-8B-Instruct and -70B-Instruct.
SHAPES: dict[str, Shape] = {
    "llama-3.1-8b": _make_llama(
        4096, 14336, layers=32, heads=(32, 8, 128), vocabulary=128_256, max_tokens=131_072, tied_embeddings=False
    ),
    "llama-3.1-70b": _make_llama(
        8192, 28672, layers=80, heads=(64, 8, 128), vocabulary=128_256, max_tokens=131_072, tied_embeddings=False
    ),
    **PUBLISHED,
}
