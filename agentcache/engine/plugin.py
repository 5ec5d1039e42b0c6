"""Entry point in vLLM's group `vllm.general_plugins`: run in every process of vLLM, possibly more than once."""

from __future__ import annotations


def register() -> None:
    from agentcache.engine.compat import check_vllm

    check_vllm()
    from agentcache.engine.forced_reply import accept_forced_replies
    from agentcache.engine.job_calls import answer_job_calls
    from agentcache.engine.policy_switch import accept_policies
    from agentcache.engine.snapshot import answer_snapshots

    accept_forced_replies()
    answer_snapshots()
    answer_job_calls()
    accept_policies()
