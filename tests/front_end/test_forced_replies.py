from __future__ import annotations

from typing import Any

import pytest
from lone_scheduler import make_config
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.inputs.engine import tokens_input
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor

from agentcache.engine.constants import REPLY_ARGUMENT
from agentcache.front_end.plugin import register
from agentcache.front_end.request_marks import mark_requests


def params_of(reply: object, **settings: Any) -> SamplingParams:
    return SamplingParams(extra_args=None if reply is None else {REPLY_ARGUMENT: reply}, **settings)


@pytest.fixture(scope="module")
def processor(tiny_model_path: str) -> InputProcessor:
    mark_requests()
    return InputProcessor(make_config(tiny_model_path, None, forced_replies=True))


def process(processor: InputProcessor, params: SamplingParams) -> SamplingParams:
    request: EngineCoreRequest = processor.process_inputs("a", tokens_input([1, 2, 3]), params, ("generate",))
    assert request.sampling_params is not None
    return request.sampling_params


def refusal(processor: InputProcessor, reply: object) -> str:
    with pytest.raises(VLLMValidationError) as caught:
        process(processor, params_of(reply))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def end_of_turn(processor: InputProcessor) -> int:
    token = processor.renderer.get_eos_token_id()
    assert token is not None
    return token


def test_accepting_twice_is_accepting_once() -> None:
    mark_requests()
    accepting = InputProcessor.process_inputs
    mark_requests()
    register()
    assert InputProcessor.process_inputs is accepting


def test_forced_request_ends_with_its_reply(processor: InputProcessor) -> None:
    given = params_of([7, 8, 9], min_tokens=2, stop=["x"], stop_token_ids=[8], ignore_eos=True)
    params = process(processor, given)
    assert params.max_tokens == 3
    assert params.eos_token_id == end_of_turn(processor)
    assert (params.min_tokens, params.stop, params.stop_token_ids, params.ignore_eos) == (0, [], [], False)
    assert (params.extra_args or {})[REPLY_ARGUMENT] == [7, 8, 9]
    # The caller's own are as they were.
    assert (given.max_tokens, given.min_tokens, given.stop, given.stop_token_ids) == (16, 2, ["x"], [8])


@pytest.mark.parametrize(("asked", "allowed"), [(None, 3), (100, 3), (2, 2)])
def test_reply_is_cut_only_where_the_client_says_so(processor: InputProcessor, asked: int | None, allowed: int) -> None:
    assert process(processor, params_of([7, 8, 9], max_tokens=asked)).max_tokens == allowed


def test_reply_may_end_with_the_end_of_turn(processor: InputProcessor) -> None:
    assert process(processor, params_of([7, 8, end_of_turn(processor)])).max_tokens == 3


def test_vllms_trace_replay_gets_the_reply_with_its_end_of_turn(
    processor: InputProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor.model_config, "enable_trace_replay", True)
    reply = [7, 8, end_of_turn(processor)]
    params = process(processor, params_of(reply))
    assert params.trace_decode_token_ids == reply
    assert (params.max_tokens, params.ignore_eos, params.eos_token_id) == (3, False, reply[-1])


def test_other_requests_are_as_without_the_plugin(processor: InputProcessor) -> None:
    params = process(processor, params_of(None, max_tokens=9, min_tokens=2, stop=["x"], ignore_eos=True))
    assert (params.max_tokens, params.min_tokens, params.stop, params.ignore_eos) == (9, 2, ["x"], True)
    assert params.trace_decode_token_ids is None


def test_replies_must_be_enabled(tiny_model_path: str) -> None:
    mark_requests()
    closed = InputProcessor(make_config(tiny_model_path, None))
    assert refusal(closed, [7]) == f"{REPLY_ARGUMENT}: start the server with --forced-replies to use it"


@pytest.mark.parametrize("reply", [[], "789", {"0": 7}, 7, (7, 8)])
def test_reply_must_be_a_list_with_tokens(processor: InputProcessor, reply: object) -> None:
    assert refusal(processor, reply) == f"{REPLY_ARGUMENT}: must be a non-empty list of token ids"


@pytest.mark.parametrize("token", [-1, 8192, "7", 7.0, None])
def test_reply_must_be_in_the_vocabulary(processor: InputProcessor, token: object) -> None:
    assert refusal(processor, [7, token]) == f"{REPLY_ARGUMENT}: every token id must be an integer from 0 to 8191"


def test_last_token_of_the_vocabulary_will_do(processor: InputProcessor) -> None:
    assert process(processor, params_of([8191])).max_tokens == 1


def test_end_of_turn_must_not_stand_in_the_middle(processor: InputProcessor) -> None:
    token = end_of_turn(processor)
    assert refusal(processor, [7, token, 8]) == f"{REPLY_ARGUMENT}: the end-of-turn token {token} stands before the end"
