"""Names by which the plug-in's parts are entered, for processes and modules that do not load vLLM's internals."""

from __future__ import annotations

# vLLM's `scheduler_cls`.
SCHEDULER_CLASS = "agentcache.engine.scheduler.AgentScheduler"

# One of vLLM's `logits_processors`, for the V1 model runner.
FORCED_REPLY_PROCESSOR = "agentcache.engine.forced_reply:ForcedReplyProcessor"

# In `vllm_xargs` of a request: the token ids of the reply that the client dictates.
REPLY_ARGUMENT = "agentcache_reply_token_ids"
