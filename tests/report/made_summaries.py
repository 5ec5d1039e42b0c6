"""Summaries of policies, made up."""

from __future__ import annotations

from agentcache.report.summary import Distribution, PolicySummary

EMPTY = PolicySummary(
    job_latency_s=Distribution(),
    ttft_s=Distribution(),
    tpot_s=Distribution(),
    queue_s=Distribution(),
    tool_s=Distribution(),
    token_hit_rate=None,
    block_hit_rate=None,
    request_hit_rate=None,
    recomputed_tokens=None,
    jobs=0,
    failed=0,
    interrupted=0,
    turns=0,
    makespan_s=None,
    preemptions=None,
    retries=0,
    diverged_prompts=0,
    engine_startup_s=None,
)
