"""Replies that another thread reads once their requests are over."""

from __future__ import annotations

import logging
from threading import Thread
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.config import ModelConfig, VllmConfig
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.request import Request, RequestStatus

from agentcache.engine.constants import CALLS_ARGUMENT, REPLY_ARGUMENT, TOOLS_DECLARED_ARGUMENT
from agentcache.engine.replies.ended_reply import MAX_TOKENS, EndedReply, ToolReader, calls_of
from agentcache.engine.replies.parser_log import pass_in_one_line, reading_again
from agentcache.models.catalog import resolve_model

_CALL = '<tool_call>\n{"name": "look", "arguments": {"command": "make"}}\n</tool_call>'


@pytest.fixture(scope="module")
def reader() -> ToolReader:
    config = ModelConfig(resolve_model("shape:llama-3.1-8b").path)
    return ToolReader(VllmConfig(model_config=config), "hermes")


def _finish(tokens: list[int], **changes: Any) -> Request:
    arguments = changes.pop("arguments", {TOOLS_DECLARED_ARGUMENT: ["look"]})
    params = SamplingParams(max_tokens=changes.pop("max_tokens", 99), extra_args=arguments)
    request = Request("r", list(range(1000)), params, None)
    request.append_output_token_ids(tokens)
    request.status = RequestStatus.FINISHED_STOPPED
    for name, value in changes.items():
        setattr(request, name, value)
    return request


@pytest.mark.parametrize(
    ("changes", "tools"),
    [
        ({}, ["look"]),
        ({"status": RequestStatus.FINISHED_LENGTH_CAPPED}, ["look"]),
        ({"arguments": {TOOLS_DECLARED_ARGUMENT: ["else"]}}, ["(undeclared)"]),
        ({"arguments": None}, []),
        ({"arguments": {REPLY_ARGUMENT: "[]", CALLS_ARGUMENT: '[["write", "{}"]]'}}, ["write"]),
        ({"kv_transfer_params": {"do_remote_decode": True}, "max_tokens": 1}, ["(decoded elsewhere)"]),
    ],
    ids=["stopped", "length", "undeclared", "no tools", "dictated", "handed over"],
)
def test_it_calls_what_its_request_calls(changes: dict[str, Any], tools: list[str], reader: ToolReader) -> None:
    tokenizer = cached_tokenizer_from_config(reader._model)
    tokens = tokenizer.encode(_CALL, add_special_tokens=False)
    request = _finish([*tokens, tokenizer.eos_token_id], **changes)
    reply = EndedReply.of(request, MAX_TOKENS)
    assert calls_of(reply, reader) == calls_of(request, reader)
    assert [call.tool for call in calls_of(reply, reader)] == tools


def test_it_keeps_its_last_tokens_alone() -> None:
    request = _finish([1, 2, 3])
    reply = EndedReply.of(request, 2)
    request.append_output_token_ids([4])
    assert list(reply.output_token_ids) == [2, 3]


def test_a_reader_silences_parsers_in_its_thread_alone() -> None:
    record = logging.LogRecord("vllm.parser.x", logging.ERROR, "", 0, "broken", None, None)
    elsewhere: list[bool] = []
    with reading_again():
        assert not pass_in_one_line(record)
        other = Thread(target=lambda: elsewhere.append(pass_in_one_line(record)))
        other.start()
        other.join()
    assert elsewhere == [True]
    assert pass_in_one_line(record)
