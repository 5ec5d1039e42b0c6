"""Gaps of requests with a LoRA adapter, and of those whose reply has a grammar."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from drafting import FEW_TOKENS, GAP, OTHERS, PROMPT, ask_with_drafts
from live_engine import BLOCK, ColdEngine, LiveEngine, Reply, assert_same
from loaded_once import get_context
from safetensors.torch import save_file
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams

from agentcache.models.shapes import TINY

pytestmark = pytest.mark.engine

RANK = 8


def make_adapter(folder: Path, number: int) -> LoRARequest:
    """Random weights on the keys and values of all layers, so that its blocks differ from the model's own."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(number)
    tensors = {}
    width = TINY.fields["num_key_value_heads"] * TINY.fields["head_dim"]
    for layer in range(TINY.fields["num_hidden_layers"]):
        for part in ("k_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, TINY.hidden, generator=generator) * 0.3
            tensors[f"{name}.lora_B.weight"] = torch.randn(width, RANK, generator=generator) * 0.3
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["k_proj", "v_proj"],
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return LoRARequest(folder.name, number, str(folder))


def test_adapters_share_nothing_and_fill_their_own_gaps(tiny_model_path: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": RANK}
    cold = ColdEngine(tiny_model_path, **options)
    engine = LiveEngine(tiny_model_path, **options)
    adapters = [None, make_adapter(tmp_path / "one", 1), make_adapter(tmp_path / "two", 2)]
    expected = [cold.ask(PROMPT, lora=adapter) for adapter in adapters]
    assert len({tuple(reply.tokens) for reply in expected}) == 3, "the adapters must differ to prove anything"
    for adapter, reply in zip(adapters, expected, strict=True):
        first = engine.ask(PROMPT, lora=adapter)
        assert_same(first, reply)
        assert first.cached == 0
        engine.forget(PROMPT, GAP, lora=adapter)
    # By itself: vLLM's CPU kernels give a request without an adapter that of its neighbours.
    replies = [engine.ask(PROMPT)]
    names = [engine.add(PROMPT, lora=adapter) for adapter in adapters[1:]]
    engine.finish()
    replies += map(engine.reply, names)
    for again, reply in zip(replies, expected, strict=True):
        assert_same(again, reply)
        assert again.cached == 17 * BLOCK
    assert engine.fill_tokens == 3 * len(GAP) * BLOCK


def ask_in_json(engine: LiveEngine) -> Reply:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return engine.ask(PROMPT, 12, structured_outputs=StructuredOutputsParams(json=schema), detokenize=True)


def test_requests_with_a_grammar_have_their_gaps_filled(
    cold: LiveEngine, take_engine: Callable[..., LiveEngine]
) -> None:
    engine = take_engine()
    expected = ask_in_json(cold)
    assert_same(ask_in_json(engine), expected)
    engine.forget(PROMPT, GAP)
    reply = ask_in_json(engine)
    assert_same(reply, expected)
    assert engine.fill_tokens == len(GAP) * BLOCK
    assert reply.cached == 17 * BLOCK


@pytest.mark.usefixtures("forkserver")
def test_gaps_beside_drafts_that_repeat_the_prompt(tiny_model_path: str, cold: LiveEngine) -> None:
    """Drafts by ngram need no cache. In a process of its own: what vLLM loads for them is in other engines' way."""
    expected = [cold.ask(prompt, 60, allowed_token_ids=FEW_TOKENS) for prompt in (PROMPT, *OTHERS)]
    with ProcessPoolExecutor(1, mp_context=get_context()) as pool:
        seen = pool.submit(ask_with_drafts, tiny_model_path).result()
    for replies in seen.replies:
        for reply, cold_reply in zip(replies, expected, strict=True):
            assert_same(reply, cold_reply)
        assert replies[0].cached == 17 * BLOCK
    assert seen.fill_tokens == len(seen.replies) * len(GAP) * BLOCK
    assert seen.accepted > 20
