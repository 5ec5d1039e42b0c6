"""What the API server tells the engine core of a prompt's messages."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import unwrap
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from agentcache.engine.constants import CONTINUES_ARGUMENT, ROLES_ARGUMENT, SENT_ARGUMENT
from agentcache.engine.jobs.told_prompt import tell_prompts

CALL = {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "rain"}
TEXT = {"type": "output_text", "text": "I see.", "annotations": []}
REPLY = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [TEXT]}
THOUGHT = {"type": "reasoning", "id": "r", "summary": [], "content": None}
ASKED = {"role": "user", "content": "?"}


@pytest.fixture(autouse=True)
def _telling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for request_class in (ChatCompletionRequest, ResponsesRequest):
        monkeypatch.setattr(request_class, "to_sampling_params", unwrap(request_class.to_sampling_params))
    tell_prompts.cache_clear()
    tell_prompts()
    yield
    tell_prompts.cache_clear()


def test_a_chat_s_roles_are_told_a_letter_each() -> None:
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "developer", "user"]
    messages = [{"role": role, "content": "?", "tool_call_id": "1"} for role in roles]
    arguments = {"theirs": 1}
    request = ChatCompletionRequest.model_validate({"messages": messages, "vllm_xargs": arguments})
    told = request.to_sampling_params(9, {}).extra_args or {}
    assert told.pop(SENT_ARGUMENT)["messages"][::9] == "suattasu"
    assert told == {"theirs": 1, ROLES_ARGUMENT: "suattasu"}
    assert request.vllm_xargs == {"theirs": 1}


@pytest.mark.parametrize(
    ("body", "roles"),
    [
        ({"input": "?"}, "u"),
        ({"input": "?", "instructions": "Be brief."}, "su"),
        ({"input": [ASKED, {"role": "assistant", "content": "!"}, ASKED]}, "uau"),
        # Reasoning, text and calls are one reply; results are a message each.
        ({"input": [ASKED, THOUGHT, REPLY, CALL, CALL, RESULT, RESULT, CALL, RESULT]}, "uattat"),
    ],
)
def test_the_items_of_a_response_are_told_as_messages(body: dict[str, Any], roles: str) -> None:
    params = ResponsesRequest.model_validate(body).to_sampling_params(9)
    assert (params.extra_args or {}).get(ROLES_ARGUMENT) == roles


def test_of_a_response_that_goes_on_the_one_before_is_told() -> None:
    request = ResponsesRequest.model_validate({"input": "?", "previous_response_id": "resp_1"})
    arguments = request.to_sampling_params(9).extra_args or {}
    assert arguments[CONTINUES_ARGUMENT] == "resp_1"
    assert ROLES_ARGUMENT not in arguments
