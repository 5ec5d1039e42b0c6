"""Which replies another engine decodes: a prefill instance computes the prompt and one token, and hands the KV over."""

from __future__ import annotations

from agentcache.engine.replies.ended_reply import EndedReply
from agentcache.engine.vllm.types import Request, RequestStatus

# vLLM's own connectors (NIXL, Mooncake, MoRIIO) are told that the reply is decoded elsewhere, LMCache's, where.
_MARKS = ("do_remote_decode", "disagg_spec")


def is_handed_over(request: Request | EndedReply) -> bool:
    """Tell whether the reply ended here at its only token, for another engine to decode it.

    The proxy in front of both asks so: `max_tokens` 1, and one of `_MARKS` for the KV connector.
    """
    wanted = request.kv_transfer_params
    if not isinstance(wanted, dict) or not any(map(wanted.get, _MARKS)) or request.max_tokens != 1:
        return False
    return request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
