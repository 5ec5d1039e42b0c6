"""Marks every request in the front end: whose messages its prompt is made of, and which tools it may call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from agentcache.engine.jobs.told_prompt import describe_chat, describe_response
from agentcache.engine.marks import join_marks, mark, marks_of, refuse_id, refuse_marks
from agentcache.engine.replies.declared_tools import describe_tools
from agentcache.engine.vllm.engine import InputProcessor
from agentcache.engine.vllm.patches import wrap_method
from agentcache.engine.vllm.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
    TranscriptionRequest,
    TranslationRequest,
)
from agentcache.engine.vllm.types import EngineCoreRequest, SamplingParams


@cache
def mark_prompts() -> None:
    """Give the core our marks of each request, and refuse what clients send under our names. May be called again.

    vLLM's input processor sees every request of any client. A server that streams its answer has begun it by then, with
    status 200: so the requests that have extra arguments of their own refuse them when these are read.
    """
    for request in (
        ChatCompletionRequest,
        CompletionRequest,
        ResponsesRequest,
        TranscriptionRequest,
        TranslationRequest,
    ):
        wrap_method(request, "to_sampling_params", _mark)
    wrap_method(InputProcessor, "process_inputs", _join)


def _mark(original: Callable[..., SamplingParams]) -> Callable[..., SamplingParams]:
    def to_sampling_params(self: Any, *args: Any, **kwargs: Any) -> SamplingParams:
        refuse_marks(self.vllm_xargs)
        params = original(self, *args, **kwargs)
        if isinstance(self, ChatCompletionRequest):
            return mark(params, {**describe_chat(self), **describe_tools(self)})
        if isinstance(self, ResponsesRequest):
            return mark(params, {**describe_response(self), **describe_tools(self)})
        return params

    return to_sampling_params


def _join(original: Callable[..., EngineCoreRequest]) -> Callable[..., EngineCoreRequest]:
    def process_inputs(
        self: InputProcessor, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> EngineCoreRequest:
        refuse_id(request_id)
        if isinstance(params, SamplingParams):
            refuse_marks(params.extra_args)
            if marks := marks_of(params):
                params = join_marks(params, marks)
        return original(self, request_id, prompt, params, *args, **kwargs)

    return process_inputs
