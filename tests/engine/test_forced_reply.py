from __future__ import annotations

from typing import Any

import pytest
import torch
from lone_scheduler import make_config
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.inputs.engine import tokens_input
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor.interface import AddedRequest, MovedRequest

from agentcache.engine.constants import FORCED_REPLY_PROCESSOR, REPLY_ARGUMENT
from agentcache.engine.plugin import register
from agentcache.engine.prompt_marks import mark_prompts
from agentcache.engine.replies.forced_reply import ForcedReplyProcessor

ROWS, VOCABULARY = 4, 8


def params_of(reply: object, **settings: Any) -> SamplingParams:
    return SamplingParams(extra_args=None if reply is None else {REPLY_ARGUMENT: reply}, **settings)


# The logits processor.


def make_processor(config: Any = None) -> ForcedReplyProcessor:
    return ForcedReplyProcessor(config, torch.device("cpu"), False)


def update(
    processor: ForcedReplyProcessor,
    added: tuple[AddedRequest, ...] = (),
    removed: tuple[int, ...] = (),
    moved: tuple[MovedRequest, ...] = (),
) -> None:
    processor.update_state(BatchUpdate(batch_size=ROWS, removed=removed, added=added, moved=moved))


def added(row: int, reply: list[int] | None, output: list[int]) -> AddedRequest:
    return row, params_of(reply), [1, 2, 3], output


def forced(processor: ForcedReplyProcessor) -> list[int | None]:
    """For each row the only token left; None where the logits are as they were."""
    torch.manual_seed(0)
    logits = torch.randn(ROWS, VOCABULARY)
    before = logits.clone()
    after = processor.apply(logits)
    tokens: list[int | None] = []
    for row in range(ROWS):
        [*possible] = torch.nonzero(after[row] > -torch.inf).flatten().tolist()
        tokens.append(possible[0] if len(possible) == 1 else None)
        assert len(possible) == 1 or torch.equal(after[row], before[row])
    return tokens


def test_reply_is_forced_token_by_token_and_then_let_go() -> None:
    processor, output = make_processor(), []  # type: tuple[ForcedReplyProcessor, list[int]]
    assert not processor.is_argmax_invariant()
    update(processor, added=(added(1, [5, 0, 7], output),))
    for token in (5, 0, 7):
        assert forced(processor) == [None, token, None, None]
        output.append(token)
        processor.update_state(None)
    assert forced(processor) == [None, None, None, None]


def test_rows_without_a_reply_are_left_alone() -> None:
    processor = make_processor()
    update(processor, added=(added(0, None, []), added(2, [3], []), (3, SamplingParams(), None, [])))
    assert forced(processor) == [None, None, 3, None]


def test_request_that_comes_back_goes_on_behind_its_own_output() -> None:
    processor = make_processor()
    update(processor, added=(added(0, [5, 6, 7], [5]), added(1, [1, 2], [])))
    assert forced(processor) == [6, 1, None, None]
    update(processor, removed=(0,))  # Preempted.
    assert forced(processor) == [None, 1, None, None]
    update(processor, added=(added(2, [5, 6, 7], [5, 6]),))
    assert forced(processor) == [None, 1, 7, None]


def test_new_request_takes_over_the_row_of_another() -> None:
    processor = make_processor()
    update(processor, added=(added(0, [5], []), added(1, [6], [])))
    update(processor, added=(added(0, [2], []), added(1, None, [])))
    assert forced(processor) == [2, None, None, None]


def test_replies_follow_their_requests_through_the_batch() -> None:
    processor = make_processor()
    update(processor, added=(added(0, [1], []), added(1, [2], []), added(3, [4], [])))
    update(processor, removed=(0,), moved=((3, 0, MoveDirectionality.UNIDIRECTIONAL),))
    assert forced(processor) == [4, 2, None, None]
    update(processor, moved=((0, 1, MoveDirectionality.SWAP),))
    assert forced(processor) == [2, 4, None, None]
    update(processor, moved=((1, 2, MoveDirectionality.SWAP),))  # With a row that has no reply.
    assert forced(processor) == [2, None, 4, None]
    update(processor, moved=((3, 2, MoveDirectionality.UNIDIRECTIONAL),))  # One without a reply takes its row.
    assert forced(processor) == [2, None, None, None]


# The argument of the API.


@pytest.fixture(scope="module")
def processor(tiny_model_path: str) -> InputProcessor:
    mark_prompts()
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
    mark_prompts()
    accepting = InputProcessor.process_inputs
    mark_prompts()
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
    mark_prompts()
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


def test_processor_is_found_by_the_name_that_serve_gives(tiny_model_path: str) -> None:
    config = make_config(tiny_model_path, None)
    config.model_config.logits_processors = [FORCED_REPLY_PROCESSOR]
    InputProcessor(config).validate_logits_processors_params(params_of([7]))
