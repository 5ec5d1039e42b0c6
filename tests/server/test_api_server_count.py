"""How many API servers there are is vLLM's choice, or the user's: they share what they know of jobs."""

from __future__ import annotations

import pytest

from agentcache.server.arguments import build_arguments

DP = ("--data-parallel-size", "2")


@pytest.mark.parametrize("policy", ["agentcache", "vllm"])
def test_the_number_of_servers_is_left_to_vllm(policy: str) -> None:
    assert build_arguments("tiny", DP, policy=policy).api_server_count is None
    assert build_arguments("tiny", (*DP, "--api-server-count", "1"), policy=policy).api_server_count == 1
