"""Replies that are over: which ended at a stop string that the server saw, and which another engine goes on with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentcache.engine.vllm.base import ModelConfig
from agentcache.engine.vllm.requests import cached_tokenizer_from_config
from agentcache.engine.vllm.types import Request, RequestStatus, SamplingParams

# The core may be so far ahead of the server when it aborts a reply, and the longest stop strings are so long.
MAX_TOKENS = 256
# vLLM's own connectors (NIXL, Mooncake, MoRIIO) are told that the reply is decoded elsewhere, LMCache's, where.
_HANDING_OVER = ("do_remote_decode", "disagg_spec")


@dataclass(slots=True, weakref_slot=True)
class EndedReply:
    """What is read of a request's reply in another thread. The request itself holds its prompt, a megabyte or more."""

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


def is_handed_over(request: Request | EndedReply) -> bool:
    """Tell whether the reply ended here at its only token, for another engine to decode it.

    A prefill instance computes the prompt and one token, and hands the KV over. The proxy in front of both asks so:
    `max_tokens` 1, and one of `_HANDING_OVER` for the KV connector.
    """
    wanted = request.kv_transfer_params
    if not isinstance(wanted, dict) or not any(map(wanted.get, _HANDING_OVER)) or request.max_tokens != 1:
        return False
    return request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


class StopStrings:
    """Tells replies that ended by a stop string from aborted ones: the server sees it, and aborts them."""

    def __init__(self, model_config: ModelConfig | None) -> None:
        """Read replies of a model; None finds no such reply."""
        # Loaded by the core before it makes the scheduler. None where it runs without; the server then finds none.
        self._tokenizer: Any = None if model_config is None else cached_tokenizer_from_config(model_config)

    def divide(
        self, request_ids: str | Iterable[str] | None, requests: Mapping[str, Request]
    ) -> tuple[list[str], list[str]]:
        """Divide aborted requests, None being all of `requests`: those that ended at a stop string, and the others."""
        if isinstance(request_ids, str):
            request_ids = [request_ids]
        names = list(requests if request_ids is None else request_ids)
        stopped = [name for name in names if name in requests and self.ended(requests[name])]
        return stopped, [name for name in names if name not in stopped] if stopped else names

    def ended(self, request: Request) -> bool:
        """Tell whether the end of an aborted request's reply has one of its stop strings in it: vLLM lets none pass."""
        params = request.sampling_params
        if params is None or not params.stop or self._tokenizer is None:
            return False
        tokens = request.output_token_ids
        # Until then the server looks for none.
        begin = max(params.min_tokens, len(tokens) - MAX_TOKENS)
        text = self._tokenizer.decode(tokens[begin:], skip_special_tokens=params.skip_special_tokens)
        return any(stop in text for stop in params.stop)
