"""The methods that an engine core with our scheduler has for front ends, beside vLLM's own."""

from __future__ import annotations

from agentcache.engine.rpc.job_calls import answer_job_calls
from agentcache.engine.rpc.policy_switch import accept_policies
from agentcache.engine.rpc.snapshot import answer_snapshots


def answer_front_ends() -> None:
    """Let front ends call our methods of the engine core. Safe to call more than once."""
    answer_snapshots()
    answer_job_calls()
    accept_policies()
