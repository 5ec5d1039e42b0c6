"""Replies dictated by the client: a replay serves the recorded tokens whatever the policy under test does.

A request carries them as `vllm_xargs={"agentcache_reply_token_ids": [...]}`. vLLM's V2 model runner has its own trace
replay, which HTTP does not reach: the list is handed to it. The V1 runner finds it in the request's extra arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentcache.config_reader import read_config
from agentcache.engine.constants import CALLS_ARGUMENT, REPLY_ARGUMENT
from agentcache.engine.marks import find_forced_reply, read_forced_calls
from agentcache.engine.vllm.base import VllmConfig, VLLMValidationError
from agentcache.engine.vllm.engine import InputProcessor
from agentcache.engine.vllm.types import EngineCoreRequest, SamplingParams


def force_replies(original: Callable[..., EngineCoreRequest]) -> Callable[..., EngineCoreRequest]:
    """Make `process_inputs` of vLLM's input processor understand the argument."""

    def process_inputs(
        self: InputProcessor, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> EngineCoreRequest:
        arguments = (params.extra_args or {}) if isinstance(params, SamplingParams) else {}
        if REPLY_ARGUMENT not in arguments and CALLS_ARGUMENT not in arguments:
            return original(self, request_id, prompt, params, *args, **kwargs)
        _check_allowed(REPLY_ARGUMENT if REPLY_ARGUMENT in arguments else CALLS_ARGUMENT, self.vllm_config)
        reply = find_forced_reply(params)
        end_of_turn = self.renderer.get_eos_token_id()
        _check_reply(reply, self.vllm_config, end_of_turn)
        _check_calls(arguments.get(CALLS_ARGUMENT))
        if self.model_config.enable_trace_replay:
            params.trace_decode_token_ids = reply
        request = original(self, request_id, prompt, params, *args, **kwargs)
        assert request.sampling_params is not None
        _end_with_reply(request.sampling_params, len(reply), end_of_turn)
        return request

    return process_inputs


def _check_allowed(name: str, vllm_config: VllmConfig) -> None:
    """Raise what the server answers as a 400 where clients may force no replies."""
    if not read_config(vllm_config.additional_config).forced_replies:
        raise VLLMValidationError(f"{name}: start the server with --forced-replies to use it")


def _check_reply(reply: Any, vllm_config: VllmConfig, end_of_turn: int | None) -> None:
    """Raise what the server answers as a 400 for a reply that cannot be forced."""
    vocabulary = vllm_config.model_config.get_vocab_size()
    if not isinstance(reply, list) or not reply:
        raise VLLMValidationError(f"{REPLY_ARGUMENT}: must be a non-empty list of token ids")
    if not all(type(token) is int and 0 <= token < vocabulary for token in reply):
        raise VLLMValidationError(f"{REPLY_ARGUMENT}: every token id must be an integer from 0 to {vocabulary - 1}")
    if end_of_turn in reply[:-1]:
        raise VLLMValidationError(f"{REPLY_ARGUMENT}: the end-of-turn token {end_of_turn} stands before the end")


def _check_calls(calls: Any) -> None:
    """Raise what the server answers as a 400 for calls that cannot be read."""
    if calls is not None and read_forced_calls(calls) is None:
        raise VLLMValidationError(f"{CALLS_ARGUMENT}: must be JSON text, a list of [tool, arguments as JSON text]")


def _end_with_reply(params: SamplingParams, length: int, end_of_turn: int | None) -> None:
    """Stop at the reply's end for the reason that the recording had.

    vLLM's trace replay drops the end-of-turn token, so that a reply would end for its length and show that token as
    text; with the token back in its place the reply ends with "stop", as it does on the V1 runner.
    """
    params.max_tokens = min(length, params.max_tokens or length)
    params.min_tokens = 0
    params.stop = []
    params.stop_token_ids = []
    params.ignore_eos = False
    params._eos_token_id = end_of_turn
