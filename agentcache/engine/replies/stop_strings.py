"""Replies that ended at a stop string: vLLM sees those in the API server, which then aborts the request in the core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentcache.engine.vllm.config import ModelConfig
from agentcache.engine.vllm.parsers import cached_tokenizer_from_config
from agentcache.engine.vllm.types import Request

# The core may be so far ahead of the server when the abort comes, and the longest stop strings are so long.
MAX_TOKENS = 256


class StopStrings:
    """Tells replies that ended by a stop string from aborted ones."""

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
