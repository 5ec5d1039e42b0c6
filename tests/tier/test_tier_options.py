"""`--kv-offloading-size` under a policy that steers the host's memory, and under others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from transformers import MistralConfig
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.front_end import watch_engine_arguments
from agentcache.engine.tier.options import leaves_windows_alone
from agentcache.errors import InputError


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


def test_a_model_with_windows_alone_is_left_to_vllm(tmp_path: Path) -> None:
    """Our connector is made of one that asserts that some layer keeps all tokens."""
    MistralConfig(sliding_window=64, num_hidden_layers=2, architectures=["MistralForCausalLM"]).save_pretrained(
        tmp_path
    )
    watch_engine_arguments()
    arguments = EngineArgs(
        model=str(tmp_path),
        skip_tokenizer_init=True,
        scheduler_cls=SCHEDULER_CLASS,
        max_model_len=512,
        kv_offloading_size=1,
        additional_config={"agentcache": {"policy": "agentcache"}},
    )
    config = arguments.create_engine_config()
    assert config.kv_transfer_config is not None
    assert config.kv_transfer_config.kv_connector == "OffloadingConnector"
    assert leaves_windows_alone(config)


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


def test_size_below_one_context_is_left_to_vllm(tiny_model_path: str) -> None:
    assert make_config(tiny_model_path, 0.001, policy="vllm").kv_transfer_config is not None


def make_config(model: str, size_gib: float, policy: str = "agentcache") -> VllmConfig:
    watch_engine_arguments()
    return EngineArgs(
        model=model,
        dtype="float32",
        max_model_len=4096,
        scheduler_cls=SCHEDULER_CLASS,
        kv_offloading_size=size_gib,
        additional_config={"agentcache": {"policy": policy}},
    ).create_engine_config()


def test_no_connector_without_the_option(tiny_model_path: str) -> None:
    arguments = EngineArgs(model=tiny_model_path, scheduler_cls=SCHEDULER_CLASS)
    assert arguments.create_engine_config().kv_transfer_config is None
