from __future__ import annotations

from typing import Any

import torch
from lone_scheduler import make_config
from vllm import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor.interface import AddedRequest, MovedRequest

from agentcache.engine.constants import FORCED_REPLY_PROCESSOR, REPLY_ARGUMENT
from agentcache.engine.replies.forced_reply import ForcedReplyProcessor

ROWS, VOCABULARY = 4, 8


def params_of(reply: object, **settings: Any) -> SamplingParams:
    return SamplingParams(extra_args=None if reply is None else {REPLY_ARGUMENT: reply}, **settings)


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


def test_processor_is_found_by_the_name_that_serve_gives(tiny_model_path: str) -> None:
    config = make_config(tiny_model_path, None)
    config.model_config.logits_processors = [FORCED_REPLY_PROCESSOR]
    InputProcessor(config).validate_logits_processors_params(params_of([7]))
