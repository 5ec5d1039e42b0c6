"""Names by which processes that do not load vLLM speak of the engine plug-in."""

from __future__ import annotations

# In `vllm_xargs` of a request: the token ids of the reply that the client dictates.
REPLY_ARGUMENT = "agentcache_reply_token_ids"
