"""A small model that hears: Qwen2-Audio's, with random weights. Most models that see need torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    WhisperFeatureExtractor,
)

RATE = 16000
SPECIAL = ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")


def make_audio_model(tokenizer_path: str, folder: Path) -> str:
    """The tokenizer gets the tokens that stand for what is heard."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    Qwen2AudioProcessor(WhisperFeatureExtractor(feature_size=16), tokenizer).save_pretrained(folder)
    text = {"model_type": "qwen2", "vocab_size": 8256, "max_position_embeddings": 2048, "initializer_range": 0.3}
    text |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    heard: dict[str, Any] = {"num_mel_bins": 16, "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2}
    heard |= {"encoder_ffn_dim": 64}
    config = Qwen2AudioConfig(
        audio_config=heard, text_config=text, audio_token_index=tokenizer.convert_tokens_to_ids(SPECIAL[0])
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2AudioForConditionalGeneration(config)
    # Else what is heard would be lost among the text.
    model.model.multi_modal_projector.linear.weight.data.mul_(10.0)
    model.save_pretrained(folder)
    # As in the published checkpoints, by which vLLM goes.
    file = folder / "model.safetensors"
    weights = {name.replace(".model.model.", ".model."): weight for name, weight in load_file(file).items()}
    save_file(weights, file)
    return str(folder)


def make_tone(hertz: float, seconds: float) -> tuple[NDArray[np.float32], int]:
    """A tone, which takes 25 tokens a second, and its sampling rate."""
    times = np.arange(int(RATE * seconds)) / RATE
    return np.sin(2 * np.pi * hertz * times).astype(np.float32), RATE
