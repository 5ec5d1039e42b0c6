"""`--kv-offloading-size` under a policy that steers the CPU cache, and under others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from offloading_config import act_as_on_gpu, make_config, save
from transformers import MambaConfig, MistralConfig
from vllm.engine.arg_utils import EngineArgs

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.cpu_cache.options import is_left_to_vllm
from agentcache.errors import InputError
from agentcache.front_end.hooks import watch_engine_arguments

MISTRAL = MistralConfig(
    sliding_window=64, num_hidden_layers=2, max_position_embeddings=8192, architectures=["MistralForCausalLM"]
)
MAMBA = MambaConfig(num_hidden_layers=2, hidden_size=64, vocab_size=1000, architectures=["MambaForCausalLM"])
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
    act_as_on_gpu(monkeypatch)


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


def test_no_connector_without_the_option(tiny_model_path: str) -> None:
    arguments = EngineArgs(model=tiny_model_path, scheduler_cls=SCHEDULER_CLASS)
    assert arguments.create_engine_config().kv_transfer_config is None
