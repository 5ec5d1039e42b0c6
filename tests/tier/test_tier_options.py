"""`--kv-offloading-size` under a policy that steers the host's memory, and under others."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import DeepseekV2Config, MambaConfig, MistralConfig, PretrainedConfig
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.front_end import watch_engine_arguments
from agentcache.engine.tier import options
from agentcache.engine.tier.options import is_left_to_vllm
from agentcache.engine.tier.size import count_token_bytes
from agentcache.errors import InputError

MISTRAL = MistralConfig(
    sliding_window=64, num_hidden_layers=2, max_position_embeddings=8192, architectures=["MistralForCausalLM"]
)
MAMBA = MambaConfig(num_hidden_layers=2, hidden_size=64, vocab_size=1000, architectures=["MambaForCausalLM"])
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
DISK = {"kv_offload_backend": "disk", "disk_path": "/tmp/disk", "disk_capacity_bytes": 2**30}
# Of --kv-transfer-config.
GIVEN: dict[str, dict[str, Any]] = {
    "disk": {"kv_role": "kv_both", "kv_connector": "SimpleCPUOffloadConnector", "kv_connector_extra_config": DISK},
    "tiers": {
        "kv_role": "kv_both",
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {"spec_name": "TieringOffloading"},
    },
    "unknown": {"kv_role": "kv_both", "kv_connector": "Nope"},
    "no name": {"kv_role": "kv_both", "kv_connector_extra_config": {"cpu_bytes_to_use_per_rank": 10**13}},
}


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "current_platform", SimpleNamespace(is_cpu=lambda: False))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("agentcache", "TierConnector"),
        ("agentcache-interactive", "TierConnector"),
        ("lru", "OffloadingConnector"),
        ("vllm", "OffloadingConnector"),
        ("continuum-code", "OffloadingConnector"),
    ],
)
def test_policy_chooses_the_connector(policy: str, expected: str, tiny_model_path: str) -> None:
    watch_engine_arguments()
    arguments = EngineArgs(
        model=tiny_model_path,
        scheduler_cls=SCHEDULER_CLASS,
        kv_offloading_size=1,
        additional_config={"agentcache": {"policy": policy}},
    )
    config = arguments.create_engine_config()
    assert config.kv_transfer_config is not None
    assert config.kv_transfer_config.kv_connector == expected
    assert config.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"] == 2**30


@pytest.mark.usefixtures("on_gpu")
def test_a_model_with_windows_alone_is_left_to_vllm(tmp_path: Path) -> None:
    """Our connector is made of one that asserts that some layer keeps all tokens."""
    config = make_config(save(MISTRAL, tmp_path), 1)
    assert config.kv_transfer_config is not None
    assert config.kv_transfer_config.kv_connector == "OffloadingConnector"
    assert is_left_to_vllm(config)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("caching", [True, False])
def test_a_model_with_states_alone_is_left_to_vllm(caching: bool, tmp_path: Path) -> None:
    """Without prefix caching ours switches itself off, before it would look for such a layer."""
    config = make_config(save(MAMBA, tmp_path), 1, enable_prefix_caching=caching)
    assert config.kv_transfer_config is not None
    assert config.kv_transfer_config.kv_connector == ("OffloadingConnector" if caching else "TierConnector")
    assert is_left_to_vllm(config) is caching


@pytest.mark.usefixtures("on_gpu")
def test_tier_is_left_to_vllm_where_asked(tiny_model_path: str) -> None:
    watch_engine_arguments()
    arguments = EngineArgs(
        model=tiny_model_path,
        scheduler_cls=SCHEDULER_CLASS,
        kv_offloading_size=1,
        additional_config={"agentcache": {"tier": {"enabled": False}}},
    )
    transfer = arguments.create_engine_config().kv_transfer_config
    assert transfer is not None
    assert transfer.kv_connector == "OffloadingConnector"


@pytest.mark.parametrize(
    ("size_gib", "complaint"),
    [
        (-1.0, "-1: give more than 0 GiB"),
        (0.0, "0: give more than 0 GiB"),
        (math.nan, "nan: give more than 0 GiB"),
        (1e9, r"1e\+09: this machine has \d+ GiB"),
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


def test_every_engine_of_the_machine_takes_the_size(tiny_model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of 1 GiB, 24 of them."""
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 24, "SC_PAGE_SIZE": 2**30}.__getitem__)
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


@pytest.mark.parametrize("name", GIVEN)
def test_a_connector_beside_the_option_is_refused(name: str, tiny_model_path: str) -> None:
    """Of the two, vLLM keeps all but the connector's name."""
    with pytest.raises(
        InputError, match=r"^--kv-offloading-size and --kv-transfer-config: leave one out; .*agentcache"
    ):
        make_config(tiny_model_path, 1, kv_transfer_config=GIVEN[name])


def test_a_connector_alone_is_left_alone(tiny_model_path: str) -> None:
    transfer = make_config(tiny_model_path, None, kv_transfer_config=GIVEN["disk"]).kv_transfer_config
    assert transfer is not None
    assert (transfer.kv_connector, transfer.kv_connector_extra_config) == ("SimpleCPUOffloadConnector", DISK)


@pytest.mark.parametrize("knobs", [{"policy": "vllm"}, {"policy": "agentcache", "tier": {"enabled": False}}])
def test_what_nobody_steers_is_merged_by_vllm(knobs: dict[str, Any], tiny_model_path: str) -> None:
    transfer = make_config(tiny_model_path, 1, knobs, kv_transfer_config=GIVEN["tiers"]).kv_transfer_config
    assert transfer is not None
    assert transfer.kv_connector == "OffloadingConnector"
    assert transfer.kv_connector_extra_config == {"spec_name": "TieringOffloading", "cpu_bytes_to_use": 2**30}


@pytest.mark.parametrize(
    ("policy", "advice"), [("vllm", ", or take policy agentcache with tier.enabled"), ("continuum-code", ", or take")]
)
def test_vllms_own_tier_is_refused_on_its_cpu_backend(policy: str, advice: str, tiny_model_path: str) -> None:
    with pytest.raises(InputError, match=f"^--kv-offloading-size: vLLM's OffloadingConnector .*leave it out{advice}"):
        make_config(tiny_model_path, 1, {"policy": policy})


def test_no_policy_is_advised_to_a_model_left_to_vllm(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not run on its CPU backend; leave it out$"):
        make_config(save(MISTRAL, tmp_path), 1)


def save(config: PretrainedConfig, folder: Path) -> str:
    config.save_pretrained(folder)
    return str(folder)


def make_config(model: str, size_gib: float | None, knobs: dict[str, Any] | None = None, **engine: Any) -> VllmConfig:
    watch_engine_arguments()
    return EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=4096,
        scheduler_cls=SCHEDULER_CLASS,
        kv_offloading_size=size_gib,
        additional_config={"agentcache": knobs or {"policy": "agentcache"}},
        **engine,
    ).create_engine_config()


def test_no_connector_without_the_option(tiny_model_path: str) -> None:
    arguments = EngineArgs(model=tiny_model_path, scheduler_cls=SCHEDULER_CLASS)
    assert arguments.create_engine_config().kv_transfer_config is None
