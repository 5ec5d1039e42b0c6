"""Models that costs cannot be made for are served as by LRU, with one line that says why; others as always."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grouped_scheduler import FULL, WARNED, WINDOW, make_lone
from lone_scheduler import LoneScheduler, make_config, make_scheduler
from steered_scheduler import do_turn_in_no_time, tokens_of
from transformers import Ernie4_5_VLMoeTextConfig, Gemma4TextConfig, Mamba2Config, OPTConfig, PretrainedConfig
from vllm.config import VllmConfig

from agentcache._evictor import LruEvictor, PinnedEvictor
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.errors import InputError
from agentcache.run.layer_groups import count_blocks, make_layer_groups

TINY_GEMMA_4: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "head_dim": 32,
    "global_head_dim": 64,
    "sliding_window": 64,
    "num_kv_shared_layers": 2,
    "vocab_size": 8192,
    "vocab_size_per_layer_input": 8192,
}
COSTLESS = pytest.mark.parametrize(
    ("hf_config", "reason"),
    [
        (Ernie4_5_VLMoeTextConfig(), "has no whole number as its moe_intermediate_size or intermediate_size"),
        (PretrainedConfig(), "has no num_hidden_layers"),
        (OPTConfig(), "has no intermediate_size"),
        (Mamba2Config(), "has no mamba_num_heads or mamba_n_heads"),
    ],
    ids=["list", "unknown", "other-names", "no-attention"],
)


@pytest.fixture(scope="module", autouse=True)
def _with_logging_set_up(tiny_model_path: str) -> None:
    """vLLM sets its logging up with the first configuration, and what listens to it then hears nothing more."""
    make_config(tiny_model_path, SCHEDULER_CLASS)


def make_model(tiny_model_path: str, folder: Path, config: PretrainedConfig, architecture: str) -> str:
    """A folder that vLLM reads its configuration from."""
    for file in Path(tiny_model_path).glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    config.architectures = [architecture]
    config.save_pretrained(folder)
    return str(folder)


def make_config_of(tiny_model_path: str, hf_config: PretrainedConfig, policy: str) -> VllmConfig:
    """vLLM's, of the model `tiny`, with what its text model's config would be for another."""
    config = make_config(tiny_model_path, SCHEDULER_CLASS, policy=policy)
    config.model_config.hf_text_config = hf_config
    return config


def warnings_in(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in log.records if (record.name, record.levelname) == WARNED]


@COSTLESS
def test_a_model_without_costs_starts_with_one_warning(
    tiny_model_path: str, vllm_log: pytest.LogCaptureFixture, hf_config: PretrainedConfig, reason: str
) -> None:
    scheduler = make_scheduler(make_config_of(tiny_model_path, hf_config, "agentcache"), 40)
    assert isinstance(scheduler.evictor, LruEvictor)
    (line,) = warnings_in(vllm_log)
    assert line.startswith(f"The model's config ({type(hf_config).__name__}) {reason}")
    assert "evicted least recently used first" in line
    do_turn_in_no_time(LoneScheduler(scheduler), "one", tokens_of(1, 100), calls=())
    vllm_log.clear()
    make_scheduler(make_config_of(tiny_model_path, hf_config, "vllm"), 40)
    assert warnings_in(vllm_log) == []


def test_groups_of_layers_of_an_unknown_type_are_refused(tiny_model_path: str) -> None:
    config = make_config_of(tiny_model_path, PretrainedConfig(layer_types=["hybrid"]), "vllm")
    with pytest.raises(InputError, match="layers of an unknown type in its layer_types: 'hybrid'"):
        make_layer_groups(config)


def test_gemma_4_has_costs(tiny_model_path: str, tmp_path: Path, vllm_log: pytest.LogCaptureFixture) -> None:
    model = make_model(tiny_model_path, tmp_path, Gemma4TextConfig(**TINY_GEMMA_4), "Gemma4ForCausalLM")
    lone = make_lone(model, [WINDOW, FULL], policy="agentcache", runtime={"tool_parser": None})
    assert isinstance(lone.scheduler.evictor, PinnedEvictor)
    assert warnings_in(vllm_log) == []


def test_gemma_4s_layers_are_grouped_by_their_own_sizes(tiny_model_path: str, tmp_path: Path) -> None:
    """The last two read what the two before them keep. A page of 4 heads of 32 is as long as two of 1 of 64."""
    model = make_model(tiny_model_path, tmp_path, Gemma4TextConfig(**TINY_GEMMA_4), "Gemma4ForCausalLM")
    config = make_config(model, None)
    groups = make_layer_groups(config)
    assert [(type(group.kv_cache_spec).__name__, group.layer_names) for group in groups] == [
        ("SlidingWindowSpec", ["layer.0", "layer.2"]),
        ("FullAttentionSpec", ["layer.1", "layer.3"]),
    ]
    window, full = (group.kv_cache_spec for group in groups)
    assert (window.num_kv_heads, window.head_size, window.sliding_window) == (4, 32, 64)
    assert (full.num_kv_heads, full.head_size) == (1, 64)
    assert window.page_size_bytes == full.page_size_bytes
    assert full.block_size == 2 * window.block_size
    assert count_blocks(config, groups, 4096) > 4096 // full.block_size
