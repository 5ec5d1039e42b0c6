"""What the API server knows of a prompt and the engine core cannot see in tokens: whose messages it is made of, say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import islice
from typing import Any

from agentcache.engine.constants import (
    AGENT_ARGUMENT,
    CONTINUES_ARGUMENT,
    LEFT_ARGUMENT,
    QUESTIONS_ARGUMENT,
    ROLES_ARGUMENT,
)
from agentcache.engine.jobs.names import shorten
from agentcache.engine.jobs.questions import MAX_PIECES, Questions, find_questions
from agentcache.engine.jobs.sent_digests import digest_chat, digest_response
from agentcache.engine.marks import join_marks, read_mark
from agentcache.engine.vllm.requests import ChatCompletionRequest, ResponsesRequest
from agentcache.engine.vllm.types import EngineCoreRequest, Request

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
_LETTERS = {"system": "s", "developer": "s", "user": "u", "assistant": "a", "tool": "t", "function": "t"}
_MAX_MESSAGES = 4096

# Which of its session's agents sends the request in progress, if its client says so.
asking_agent: ContextVar[str | None] = ContextVar("agentcache_agent", default=None)


def read_roles(request: Request) -> str:
    """Read the letters of the prompt's messages; empty if the API server did not send them."""
    roles = read_mark(request, ROLES_ARGUMENT)
    is_told = isinstance(roles, str) and len(roles) <= _MAX_MESSAGES and ROLES.keys() >= set(roles)
    return roles if is_told else ""


def has_reply(roles: str) -> bool:
    """Tell whether messages hold an earlier reply. One that ends them is what the client has begun for the model."""
    return "a" in roles.rstrip("a")


def has_history(request: Request) -> bool:
    """Tell whether the prompt holds an earlier reply, so that it goes on from some turn."""
    return has_reply(read_roles(request))


def read_questions(request: Request) -> Questions:
    """Read digests of what the prompt asks; both None if the API server did not send them."""
    told = read_mark(request, QUESTIONS_ARGUMENT)
    is_known = isinstance(told, list) and len(told) == len(Questions())
    return Questions(*(each if isinstance(each, str) else None for each in told)) if is_known else Questions()


def read_agent(request: Request) -> str | None:
    """Read which agent of its session has sent the request; None where its client does not say."""
    agent = read_mark(request, AGENT_ARGUMENT)
    return agent if isinstance(agent, str) else None


def read_predecessor(request: Request) -> str | None:
    """Read the id of the response that the request says it goes on from."""
    response = read_mark(request, CONTINUES_ARGUMENT)
    return response if isinstance(response, str) else None


def tell_left(request: EngineCoreRequest, tokens: int) -> None:
    """Tell a moved job's new engine how many tokens of this prompt its old one has cached."""
    if request.sampling_params is not None and tokens:
        # The samples of one request share theirs, and only the first of them moves the job.
        request.sampling_params = join_marks(request.sampling_params, {LEFT_ARGUMENT: tokens})


def read_left(request: Request) -> int:
    """Read how many tokens of the prompt the engine that the job has just left has cached; 0 if it has left none."""
    tokens = read_mark(request, LEFT_ARGUMENT)
    return tokens if type(tokens) is int and tokens > 0 else 0


def describe_chat(chat: ChatCompletionRequest) -> dict[str, Any]:
    """Build the marks that tell the engine of a chat's messages."""
    return {**_describe(chat.messages), **digest_chat(chat)}


def describe_response(response: ResponsesRequest) -> dict[str, Any]:
    """Build the marks that tell the engine of a response's input."""
    if response.previous_response_id:
        # The server puts the messages before those of the request.
        continues = {CONTINUES_ARGUMENT: response.previous_response_id}
        return {**continues, **_name_agent(), **digest_response(response)}
    given = response.input
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    instructions = [{"role": "system"}] if response.instructions else []
    return {**_describe([*instructions, *items]), **digest_response(response)}


def _describe(items: Iterable[Any]) -> dict[str, Any]:
    """Build the marks that describe messages, or the items of a response, to the engine."""
    messages = list(islice(_find_messages(items), MAX_PIECES + 1))
    return {
        ROLES_ARGUMENT: "".join(letter for letter, _ in messages[:_MAX_MESSAGES]),
        QUESTIONS_ARGUMENT: list(find_questions(messages)),
        **_name_agent(),
    }


def _name_agent() -> dict[str, str]:
    agent = asking_agent.get()
    return {} if agent is None else {AGENT_ARGUMENT: shorten(agent)}


def _find_messages(items: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the letter and content of each message. A response's reasoning, text and calls in a row are one reply."""
    was_part = False
    for item in items:
        values: Any = item if isinstance(item, Mapping) else vars(item)
        role, kind = values.get("role"), str(values.get("type", ""))
        if isinstance(role, str) and kind in ("", "message", "None") and role != "assistant":
            was_part = False
            yield _LETTERS.get(role, "u"), values.get("content")
        elif kind.endswith("_output"):
            was_part = False
            yield "t", values.get("output")
        else:
            if not (was_part and kind):
                yield "a", None
            was_part = bool(kind)
