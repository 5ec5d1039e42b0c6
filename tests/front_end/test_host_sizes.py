"""Which sizes of the CPU cache are refused, and how many tokens one has room for."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from offloading_config import act_as_on_gpu, make_config, save
from transformers import DeepseekV2Config, Gemma3TextConfig, PretrainedConfig, Qwen3NextConfig

from agentcache.errors import InputError
from agentcache.front_end import offloading
from agentcache.front_end.offloading import count_host_tokens
from agentcache.front_end.token_bytes import count_token_bytes

LATENT = DeepseekV2Config(
    num_hidden_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=4,
    kv_lora_rank=32,
    qk_rope_head_dim=16,
    qk_nope_head_dim=16,
    v_head_dim=16,
    vocab_size=1000,
    max_position_embeddings=8192,
    architectures=["DeepseekV2ForCausalLM"],
)
# Two layers that see 512 tokens, and one that sees all; two heads of 32.
WINDOWS = Gemma3TextConfig(
    num_hidden_layers=3,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    sliding_window=512,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=1000,
    max_position_embeddings=8192,
    architectures=["Gemma3ForCausalLM"],
)
# Three layers with a state, and one that keeps all tokens; two heads of 32.
STATES = Qwen3NextConfig(
    num_hidden_layers=4,
    layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    linear_num_value_heads=2,
    linear_num_key_heads=2,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    vocab_size=1000,
    max_position_embeddings=8192,
    architectures=["Qwen3NextForCausalLM"],
)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    act_as_on_gpu(monkeypatch)


@pytest.mark.parametrize(
    ("size_gib", "complaint"),
    [
        (-1.0, "-1: give more than 0 GiB"),
        (0.0, "0: give more than 0 GiB"),
        (math.nan, "nan: give more than 0 GiB"),
        (1e9, r"1e\+09: this (machine|container) has \d+ GiB"),
        # Two layers of two heads of 32 in float32: 1,024 bytes a token.
        (1024 * 4095 / 2**30, "one context of 4,096 tokens takes 0.00391 GiB"),
    ],
)
def test_size_that_cannot_work_is_refused(size_gib: float, complaint: str, tiny_model_path: str) -> None:
    with pytest.raises(InputError, match=f"--kv-offloading-size .*{complaint}"):
        make_config(tiny_model_path, size_gib)


def test_size_of_one_context_is_enough(tiny_model_path: str) -> None:
    assert make_config(tiny_model_path, 1024 * 4096 / 2**30).kv_transfer_config is not None


@pytest.mark.usefixtures("on_gpu")
def test_size_below_one_context_is_left_to_vllm(tiny_model_path: str) -> None:
    assert make_config(tiny_model_path, 0.001, {"policy": "vllm"}).kv_transfer_config is not None


def limit_memory(monkeypatch: pytest.MonkeyPatch, machine_gib: int, container_gib: int | None) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": machine_gib, "SC_PAGE_SIZE": 2**30}.__getitem__)
    monkeypatch.setattr(offloading, "get_cgroup_memory_limit", lambda: container_gib and container_gib * 2**30)


@pytest.mark.parametrize(("container_gib", "owner"), [(8, "container has 8"), (99, "machine has 24")])
def test_the_limit_of_a_container_counts(
    container_gib: int, owner: str, tiny_model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, machine_gib=24, container_gib=container_gib)
    assert make_config(tiny_model_path, 8).kv_transfer_config is not None
    with pytest.raises(InputError, match=f"^--kv-offloading-size 25: this {owner} GiB; give less$"):
        make_config(tiny_model_path, 25)


@pytest.mark.parametrize("policy", ["vllm", "agentcache"])
def test_vllms_connector_needs_shared_memory(
    policy: str, tiny_model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours takes none of it."""
    act_as_on_gpu(monkeypatch, shared_memory=str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**30))
    assert make_config(tiny_model_path, 1, {"policy": policy}).kv_transfer_config is not None
    if policy == "agentcache":
        assert make_config(tiny_model_path, 2, {"policy": policy}).kv_transfer_config is not None
        return
    with pytest.raises(InputError, match=r"^--kv-offloading-size 2: .* has 1 GiB free; .*--shm-size$"):
        make_config(tiny_model_path, 2, {"policy": policy})


def test_every_engine_of_the_machine_takes_the_size(tiny_model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, machine_gib=24, container_gib=None)
    assert make_config(tiny_model_path, 20).kv_transfer_config is not None
    assert make_config(tiny_model_path, 12, data_parallel_size=2).kv_transfer_config is not None
    with pytest.raises(InputError, match="--kv-offloading-size 20 for each of 2 engines: this machine has 24 GiB"):
        make_config(tiny_model_path, 20, data_parallel_size=2)
    remote = {"data_parallel_size": 2, "data_parallel_size_local": 1, "data_parallel_address": "127.0.0.1"}
    assert make_config(tiny_model_path, 20, **remote).kv_transfer_config is not None


@pytest.mark.parametrize(
    # Two heads of 1,024 bytes a token together; the latent vector has 384, and each rank keeps it.
    ("ranks", "of_heads", "latent"),
    [(1, 1024, 384), (2, 1024, 768), (4, 2048, 1536)],
)
def test_ranks_that_keep_the_same_count_each(
    ranks: int, of_heads: int, latent: int, tiny_model_path: str, tmp_path: Path
) -> None:
    parallel = {"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"}
    assert count_token_bytes(make_config(tiny_model_path, 1, **parallel)) == of_heads
    assert count_token_bytes(make_config(save(LATENT, tmp_path), 1, **parallel)) == latent


def test_context_parallel_ranks_share_what_they_keep(tiny_model_path: str) -> None:
    config = make_config(tiny_model_path, 1, tensor_parallel_size=4, distributed_executor_backend="mp")
    config.parallel_config.decode_context_parallel_size = 2
    assert count_token_bytes(config) == 1024


def test_a_size_must_hold_one_context_of_all_ranks(tiny_model_path: str) -> None:
    parallel = {"tensor_parallel_size": 4, "distributed_executor_backend": "mp"}
    assert make_config(tiny_model_path, 2048 * 4096 / 2**30, **parallel).kv_transfer_config is not None
    with pytest.raises(InputError, match=r"one context of 4,096 tokens takes 0\.00781 GiB"):
        make_config(tiny_model_path, 1024 * 4096 / 2**30, **parallel)


@pytest.mark.parametrize(
    # In float32 a token of a layer has 512 bytes; the context has 4,096 tokens.
    ("model", "token_bytes"),
    [(WINDOWS, 512 + 2 * 512 // 8), (STATES, 512)],
    ids=["windows", "states"],
)
def test_layers_count_for_what_they_keep(model: PretrainedConfig, token_bytes: int, tmp_path: Path) -> None:
    path = save(model, tmp_path)
    context_gib = 4096 * token_bytes / 2**30
    config = make_config(path, context_gib)
    assert count_token_bytes(config) == token_bytes
    assert count_host_tokens(config) == 4096
    with pytest.raises(InputError, match=r"one context of 4,096 tokens takes 0\.00"):
        make_config(path, 0.99 * context_gib)


def test_layers_that_share_a_cache_keep_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(save(WINDOWS, tmp_path), 1)
    monkeypatch.setattr(config.model_config.hf_text_config, "num_kv_shared_layers", 1, raising=False)
    assert count_token_bytes(config) == 2 * 512 // 8


@pytest.mark.usefixtures("on_gpu")
def test_latent_vectors_are_kept_once_a_rank(tmp_path: Path) -> None:
    parallel = {"tensor_parallel_size": 4, "distributed_executor_backend": "mp"}
    config = make_config(save(LATENT, tmp_path), 384 * 5000 * 4 / 2**30, {"policy": "agentcache"}, **parallel)
    assert count_host_tokens(config) == 5000


@pytest.mark.usefixtures("on_gpu")
def test_vllms_connector_keeps_the_heads_of_each_rank(tiny_model_path: str) -> None:
    parallel = {"tensor_parallel_size": 4, "distributed_executor_backend": "mp"}
    config = make_config(tiny_model_path, 2048 * 5000 / 2**30, {"policy": "vllm"}, **parallel)
    assert count_host_tokens(config) == 5000
