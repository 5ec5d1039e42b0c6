"""Which servers choose engines themselves: one server for all engines, and nobody in front."""

from __future__ import annotations

import pytest

from agentcache.server.arguments import build_arguments

DP = ("--data-parallel-size", "2")


@pytest.mark.parametrize(
    ("policy", "options", "count"),
    [
        ("agentcache", DP, 1),
        ("agentcache", (), None),
        ("agentcache", (*DP, "--api-server-count", "2"), 2),
        ("vllm", DP, None),
        ("agentcache", (*DP, "--data-parallel-rank", "1"), None),
        ("agentcache", (*DP, "--data-parallel-hybrid-lb"), None),
        ("agentcache", (*DP, "--headless"), None),
    ],
)
def test_one_server_where_jobs_stay_home(policy: str, options: tuple[str, ...], count: int | None) -> None:
    assert build_arguments("tiny", options, policy=policy).api_server_count == count


def test_the_knob_leaves_the_balance_to_vllm() -> None:
    args = build_arguments("tiny", DP, knobs={"replicas": {"enabled": False}})
    assert args.api_server_count is None
