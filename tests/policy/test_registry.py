from __future__ import annotations

import subprocess
import sys

import pytest

from agentcache.errors import InputError
from agentcache.policy.inputs import EvictorInputs
from agentcache.policy.registry import DEFAULT_POLICY, POLICIES, find_policy


def test_every_policy_is_found_by_its_name() -> None:
    assert {name: find_policy(name).name for name in POLICIES} == {name: name for name in POLICIES}
    assert {"vllm", "lru", DEFAULT_POLICY} <= set(POLICIES)


def test_only_vllm_keeps_the_stock_free_list() -> None:
    assert [name for name, policy in POLICIES.items() if policy.make_evictor is None] == ["vllm"]


@pytest.mark.parametrize("name", ["fifo", "LRU", ""])
def test_an_unknown_policy_is_answered_with_the_choices(name: str) -> None:
    with pytest.raises(InputError) as caught:
        find_policy(name)
    assert str(caught.value) == f"--policy {name}: unknown; choose from {', '.join(POLICIES)}"


def test_policies_and_config_load_without_the_engine() -> None:
    check = "import agentcache.config, sys; print({'torch', 'vllm'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_lru_needs_no_cost_model() -> None:
    def get_inputs() -> EvictorInputs:
        raise AssertionError("a model without a cost model must be served too")

    make_evictor = POLICIES["lru"].make_evictor
    assert make_evictor is not None
    assert len(make_evictor(get_inputs)) == 0
