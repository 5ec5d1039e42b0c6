"""What the API server knows of a prompt and the engine core cannot see in tokens: whose messages it is made of, say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import cache
from typing import Any

from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import Request

from agentcache.engine.constants import CONTINUES_ARGUMENT, LEFT_ARGUMENT, ROLES_ARGUMENT
from agentcache.engine.jobs.sent_digests import digest_chat, digest_response
from agentcache.engine.patches import wrap_method

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
_LETTERS = {"system": "s", "developer": "s", "user": "u", "assistant": "a", "tool": "t", "function": "t"}
_MAX_MESSAGES = 4096


@cache
def tell_prompts() -> None:
    """Have chat and Responses requests carry the roles of their messages into the engine. May be called again."""
    wrap_method(ChatCompletionRequest, "to_sampling_params", _tell_chat)
    wrap_method(ResponsesRequest, "to_sampling_params", _tell_response)


def read_roles(request: Request) -> str:
    """Read the letters of the prompt's messages; empty where nobody has told them."""
    roles = _read(request, ROLES_ARGUMENT)
    return roles if isinstance(roles, str) else ""


def has_history(request: Request) -> bool:
    """Tell whether the prompt holds an earlier reply, so that it goes on from some turn."""
    return "a" in read_roles(request)


def read_predecessor(request: Request) -> str | None:
    """Read the id of the response that the request says it goes on from."""
    response = _read(request, CONTINUES_ARGUMENT)
    return response if isinstance(response, str) else None


def tell_left(request: EngineCoreRequest, tokens: int) -> None:
    """Tell a moved job's new engine how many tokens of this prompt its old one has cached."""
    if request.sampling_params is not None and tokens:
        # The samples of one request share theirs, and only the first of them moves the job.
        request.sampling_params = _mark(copy(request.sampling_params), {LEFT_ARGUMENT: tokens})


def read_left(request: Request) -> int:
    """Read how many tokens of the prompt the engine that the job has just left has cached; 0 if it has left none."""
    tokens = _read(request, LEFT_ARGUMENT)
    return tokens if isinstance(tokens, int) else 0


def _read(request: Request, name: str) -> Any:
    arguments = request.sampling_params and request.sampling_params.extra_args
    return arguments.get(name) if arguments else None


def _tell_chat(original: Callable[..., SamplingParams]) -> Callable[..., SamplingParams]:
    def to_sampling_params(self: ChatCompletionRequest, *args: Any, **kwargs: Any) -> SamplingParams:
        return _mark(original(self, *args, **kwargs), {ROLES_ARGUMENT: _write(self.messages), **digest_chat(self)})

    return to_sampling_params


def _tell_response(original: Callable[..., SamplingParams]) -> Callable[..., SamplingParams]:
    def to_sampling_params(self: ResponsesRequest, *args: Any, **kwargs: Any) -> SamplingParams:
        params = original(self, *args, **kwargs)
        if self.previous_response_id:
            # The server puts the messages before those of the request.
            return _mark(params, {CONTINUES_ARGUMENT: self.previous_response_id, **digest_response(self)})
        items = [{"role": "user"}] if isinstance(self.input, str) else self.input
        roles = "s" * bool(self.instructions) + _write(items)
        return _mark(params, {ROLES_ARGUMENT: roles, **digest_response(self)})

    return to_sampling_params


def _mark(params: SamplingParams, marks: dict[str, Any]) -> SamplingParams:
    # Not in place: vLLM hands over the client's own dict.
    params.extra_args = {**(params.extra_args or {}), **marks}
    return params


def _write(items: Iterable[Any]) -> str:
    letters = list(_find_letters(items))[:_MAX_MESSAGES]
    return "".join(letters)


def _find_letters(items: Iterable[Any]) -> Iterator[str]:
    """Yield a letter a message. A response's reasoning, text and calls in a row are one message of the assistant's."""
    was_part = False
    for item in items:
        values: Any = item if isinstance(item, Mapping) else vars(item)
        role, kind = values.get("role"), str(values.get("type", ""))
        if isinstance(role, str) and kind in ("", "message", "None") and role != "assistant":
            was_part = False
            yield _LETTERS.get(role, "u")
        elif kind.endswith("_output"):
            was_part = False
            yield "t"
        else:
            if not (was_part and kind):
                yield "a"
            was_part = bool(kind)
