"""What our front end tells the engine core cannot be told by a client."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from lone_scheduler import make_config
from marked_requests import marking_requests
from starlette.datastructures import Headers
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.inputs.engine import tokens_input
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm_internals import find_session, session_finder

from agentcache.engine import constants
from agentcache.engine.constants import (
    AGENT_ARGUMENT,
    ANSWER_MARK,
    CALLS_ARGUMENT,
    EXPECTED_ARGUMENT,
    FILL_MARK,
    PARENT_ARGUMENT,
    REPLY_ARGUMENT,
    ROLES_ARGUMENT,
    TOOLS_DECLARED_ARGUMENT,
)
from agentcache.front_end.client_sessions import SessionRequest, asking
from agentcache.front_end.family_roots import FamilyRoots
from agentcache.front_end.request_marks import mark_requests

OURS = sorted({value for name, value in vars(constants).items() if name.endswith("_ARGUMENT")})
# Those that a client may send where the operator allows it.
DICTATED = {REPLY_ARGUMENT, CALLS_ARGUMENT}
REQUESTS = {
    ChatCompletionRequest: {"messages": [{"role": "user", "content": "?"}]},
    CompletionRequest: {"prompt": [1]},
    ResponsesRequest: {"input": "?"},
}


TOOL = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module", autouse=True)
def _guarding() -> Iterator[None]:
    with marking_requests():
        yield


@pytest.fixture(scope="module")
def processor(tiny_model_path: str) -> InputProcessor:
    return InputProcessor(make_config(tiny_model_path, None))


def make_chat(**options: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({**REQUESTS[ChatCompletionRequest], **options})


def process(
    processor: InputProcessor, params: SamplingParams, request_id: str = "a", session: str | None = None
) -> EngineCoreRequest:
    return processor.process_inputs(request_id, tokens_input([1, 2, 3]), params, ("generate",), session_id=session)


def send(processor: InputProcessor, request: Any) -> EngineCoreRequest:
    """What vLLM's handler of a valid request does, and the input processor behind it."""
    session = find_session(request)
    return process(processor, request.to_sampling_params(9, {}), session=session)


@pytest.mark.parametrize(
    "name", [*OURS, "agentcache_of_a_later_version", f"agentcache_{'x' * 10**6}"], ids=lambda name: name[:40]
)
def test_an_argument_with_a_name_of_ours_is_refused(processor: InputProcessor, name: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"^{name[:64]}: ") as caught:
        process(processor, SamplingParams(extra_args={"theirs": 1, name: "z"}))
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("name", [name for name in OURS if name not in DICTATED])
@pytest.mark.parametrize("request_class", REQUESTS)
def test_it_is_refused_before_a_stream_begins(request_class: Any, name: str) -> None:
    body = {**REQUESTS[request_class], "stream": True}
    request = request_class.model_validate({**body, "vllm_xargs": {name: "z"}})
    with pytest.raises(VLLMValidationError, match=f"^{name}: "):
        find_session(request)
    other = request_class.model_validate({**body, "vllm_xargs": {"theirs": 1}})
    assert not find_session(other)


def test_calls_without_a_reply_are_dictated_nowhere(processor: InputProcessor) -> None:
    for reply in ({}, {REPLY_ARGUMENT: None}):
        with pytest.raises(VLLMValidationError, match=r"^agentcache_.*--forced-replies"):
            process(processor, SamplingParams(extra_args={CALLS_ARGUMENT: "[]", **reply}))


@pytest.mark.parametrize("request_id", [f"a{FILL_MARK}1", f"a{ANSWER_MARK}", f"{FILL_MARK}{ANSWER_MARK}"])
def test_an_id_that_looks_like_one_of_ours_is_refused(processor: InputProcessor, request_id: str) -> None:
    with pytest.raises(VLLMValidationError, match="request_id"):
        process(processor, SamplingParams(), request_id)


@pytest.mark.parametrize("arguments", [None, {"theirs": [1, 2]}])
def test_marks_join_the_clients_arguments_in_the_core_alone(
    processor: InputProcessor, arguments: dict[str, Any] | None
) -> None:
    request = make_chat(tools=[TOOL], vllm_xargs=arguments)
    # The same request may make several for the engine.
    for _ in range(2):
        params = send(processor, request).sampling_params
        assert params is not None
        told = dict(params.extra_args or {})
        assert (told.pop(ROLES_ARGUMENT), told.pop(TOOLS_DECLARED_ARGUMENT)) == ("u", ["weather"])
        assert {name: value for name, value in told.items() if name not in OURS} == (arguments or {})
        assert request.vllm_xargs == arguments
        assert request.to_sampling_params(9, {}).extra_args == arguments


@pytest.mark.parametrize("session", [None, "mine"])
def test_the_engine_gets_the_session_alone(processor: InputProcessor, session: str | None) -> None:
    for request in (make_chat(session_id=session), CompletionRequest(prompt=[1], session_id=session)):
        assert (type(send(processor, request).session_id), send(processor, request).session_id) == (
            type(session),
            session,
        )
    assert process(processor, SamplingParams(), session="given").session_id == "given"


def test_each_chat_of_a_batch_has_its_own_marks(processor: InputProcessor) -> None:
    """Their handler finds all sessions before the first of them is processed."""
    chats = [make_chat(tools=tools) for tools in ([TOOL], None)]
    sessions = [find_session(chat) for chat in chats]
    made = [process(processor, SamplingParams(), session=session).sampling_params for session in sessions]
    assert [TOOLS_DECLARED_ARGUMENT in (params.extra_args or {}) for params in made if params] == [True, False]


def test_a_beam_search_is_not_marked(processor: InputProcessor) -> None:
    session = find_session(make_chat(use_beam_search=True, session_id="mine"))
    params = process(processor, SamplingParams(), session=session).sampling_params
    assert params is not None
    assert not params.extra_args


def test_marking_twice_wraps_once() -> None:
    once = session_finder()
    mark_requests()
    assert session_finder() is once


def test_a_child_has_its_root_s_session_before_placement(processor: InputProcessor) -> None:
    roots = FamilyRoots()
    for child, parent in (("a", "root"), ("b", "a")):
        token = asking.set(SessionRequest(Headers({"x-session-id": child, "x-parent-session-id": parent}), roots))
        made = send(processor, make_chat(session_id=child, cache_salt="tenant"))
        asking.reset(token)
        assert made.session_id == "root"
        told = (made.sampling_params and made.sampling_params.extra_args) or {}
        assert (told[AGENT_ARGUMENT], told.get(PARENT_ARGUMENT)) == (child, {"b": "a"}.get(child))


@pytest.mark.parametrize("request_class", [ChatCompletionRequest, CompletionRequest])
def test_the_agent_that_asks_is_told(processor: InputProcessor, request_class: Any) -> None:
    request = request_class.model_validate(REQUESTS[request_class])
    expected = SimpleNamespace(expected={"priority": 3})
    asked = SimpleNamespace(
        agent="x" * 1000, parent="above", context=expected, message=None, name_session=lambda _, found: found
    )
    token = asking.set(asked)  # type: ignore[arg-type]
    params = send(processor, request).sampling_params
    asking.reset(token)
    assert params is not None
    told = params.extra_args or {}
    assert told[AGENT_ARGUMENT].startswith("sha256:")
    assert (told[PARENT_ARGUMENT], told[EXPECTED_ARGUMENT]) == ("above", {"priority": 3})
    params = send(processor, request).sampling_params
    assert params is not None
    assert AGENT_ARGUMENT not in (params.extra_args or {})
