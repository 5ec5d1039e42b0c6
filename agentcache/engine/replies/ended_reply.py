"""A reply that another thread reads when its request is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentcache.engine.vllm.types import FinishReason, Request, RequestStatus, SamplingParams


@dataclass(slots=True, weakref_slot=True)
class EndedReply:
    """What is read of a request's reply. The request itself holds its prompt as well, a megabyte or more."""

    sampling_params: SamplingParams | None
    kv_transfer_params: dict[str, Any] | None
    max_tokens: int
    status: RequestStatus
    output_token_ids: list[int]

    @classmethod
    def of(cls, request: Request, most_tokens: int) -> EndedReply:
        """Take the last `most_tokens` tokens of a request that is over."""
        return cls(
            request.sampling_params,
            request.kv_transfer_params,
            request.max_tokens,
            request.status,
            request.output_token_ids[-most_tokens:],
        )

    def get_finished_reason(self) -> FinishReason | None:
        """Return why the reply ended, as the request does."""
        return RequestStatus.get_finished_reason(self.status)
