"""What our front end tells the engine core of a request: marks, which no client can set.

The core reads them in the request's extra arguments, among what the client has sent. Before they get there they stand
beside these arguments, where nothing from outside is put, and what a client sends under our names is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import cache
from typing import Any

from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.request import Request

from agentcache.engine.constants import ANSWER_MARK, CALLS_ARGUMENT, FILL_MARK, REPLY_ARGUMENT
from agentcache.engine.patches import ADDED_PREFIX, replace, wrap_method
from agentcache.engine.replies.ended_reply import EndedReply

# The attribute of sampling parameters with the marks; neither JSON nor vLLM's messages have it.
_MARKS = f"{ADDED_PREFIX}marks"
# Clients may send these; `forced_reply.py` says when.
_OF_CLIENTS = frozenset((REPLY_ARGUMENT, CALLS_ARGUMENT))
_SHOWN = 64


@cache
def guard_marks() -> None:
    """Refuse what clients send under our names, and give the core our marks. Safe to call more than once.

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
        wrap_method(request, "to_sampling_params", _refuse_first)
    wrap_method(InputProcessor, "process_inputs", _join)


def mark(params: SamplingParams, marks: Mapping[str, Any]) -> SamplingParams:
    """Add marks for the engine core, which are lost if the parameters are copied. Return the same parameters."""
    replace(params, _MARKS, {**marks_of(params), **marks})
    return params


def marks_of(params: SamplingParams) -> dict[str, Any]:
    """Return the marks that were added."""
    found: dict[str, Any] = getattr(params, _MARKS, {})
    return found


def join_marks(params: SamplingParams, marks: Mapping[str, Any]) -> SamplingParams:
    """Return a copy of the parameters with marks among the extra arguments, as the engine core reads them."""
    joined = copy(params)
    joined.extra_args = {**(params.extra_args or {}), **marks}
    return joined


def read_mark(request: Request | EndedReply, name: str) -> Any:
    """Read a mark in the engine core, None if there is none. Front ends other than Python's let clients send any."""
    arguments = request.sampling_params and request.sampling_params.extra_args
    return arguments.get(name) if arguments else None


def refuse_marks(arguments: Mapping[str, Any] | None) -> None:
    """Raise what the server answers as a 400 for extra arguments that have a name of ours."""
    for name in arguments or ():
        if name.startswith(ADDED_PREFIX) and name not in _OF_CLIENTS:
            shown = name[:_SHOWN]
            raise VLLMValidationError(
                f"{shown}: the server keeps arguments that begin with {ADDED_PREFIX} for itself; leave it out",
                parameter=shown,
            )


def _refuse_id(request_id: str) -> None:
    """Raise what the server answers as a 400 for an id that could be taken for one of ours."""
    for ours in (FILL_MARK, ANSWER_MARK):
        if ours in request_id:
            raise VLLMValidationError(
                f"request_id (X-Request-Id): the server keeps {ours} for ids of its own; leave it out",
                parameter="request_id",
            )


def _refuse_first(original: Callable[..., SamplingParams]) -> Callable[..., SamplingParams]:
    def to_sampling_params(self: Any, *args: Any, **kwargs: Any) -> SamplingParams:
        refuse_marks(self.vllm_xargs)
        return original(self, *args, **kwargs)

    return to_sampling_params


def _join(original: Callable[..., EngineCoreRequest]) -> Callable[..., EngineCoreRequest]:
    def process_inputs(
        self: InputProcessor, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> EngineCoreRequest:
        _refuse_id(request_id)
        if isinstance(params, SamplingParams):
            refuse_marks(params.extra_args)
            if marks := marks_of(params):
                params = join_marks(params, marks)
        return original(self, request_id, prompt, params, *args, **kwargs)

    return process_inputs
