"""`--kv-offloading-size` under a policy that steers the host's memory, and under others."""

from __future__ import annotations

import pytest
from vllm.engine.arg_utils import EngineArgs

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.front_end import watch_engine_arguments


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
        additional_config={"agentcache": {"policy": policy, "tier": {"enabled": True}}},
    )
    config = arguments.create_engine_config()
    assert config.kv_transfer_config is not None
    assert config.kv_transfer_config.kv_connector == expected
    assert config.kv_transfer_config.kv_connector_extra_config["cpu_bytes_to_use"] == 2**30


def test_tier_is_left_to_vllm_by_default(tiny_model_path: str) -> None:
    watch_engine_arguments()
    arguments = EngineArgs(
        model=tiny_model_path,
        scheduler_cls=SCHEDULER_CLASS,
        kv_offloading_size=1,
        additional_config={"agentcache": {}},
    )
    transfer = arguments.create_engine_config().kv_transfer_config
    assert transfer is not None
    assert transfer.kv_connector == "OffloadingConnector"


def test_no_connector_without_the_option(tiny_model_path: str) -> None:
    arguments = EngineArgs(model=tiny_model_path, scheduler_cls=SCHEDULER_CLASS)
    assert arguments.create_engine_config().kv_transfer_config is None
