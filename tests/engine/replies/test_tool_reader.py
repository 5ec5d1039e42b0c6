from __future__ import annotations

import json
import logging
import shutil
import time
import timeit
from pathlib import Path
from typing import Any

import pytest
from lone_scheduler import make_config
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.v1.request import Request, RequestStatus

from agentcache.engine.constants import (
    CALLS_ARGUMENT,
    REPLY_ARGUMENT,
    TOOL_CHOICE_ARGUMENT,
    TOOLS_DECLARED_ARGUMENT,
)
from agentcache.engine.replies.ended_reply import MAX_TOKENS, ToolReader, calls_of, read_forced_calls
from agentcache.errors import InputError
from tool_runtime.learning.tool_key import UNDECLARED, ToolKey

END_OF_TURN = "<|im_end|>"
DECLARED = {TOOLS_DECLARED_ARGUMENT: True}


@pytest.fixture(scope="module")
def model_path(tiny_model_path: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Model `tiny` with the tokens that further parsers look for."""
    folder = tmp_path_factory.mktemp("model")
    shutil.copy(Path(tiny_model_path) / "config.json", folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path)
    tokenizer.add_tokens(["<|python_tag|>", "<think>", "</think>"])
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def tokenizer(model_path: str) -> Any:
    return AutoTokenizer.from_pretrained(model_path)


@pytest.fixture(scope="module")
def hermes(model_path: str) -> ToolReader:
    return ToolReader(make_config(model_path, None), "hermes")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    return caplog


def finish(
    tokens: list[int],
    status: RequestStatus = RequestStatus.FINISHED_STOPPED,
    arguments: dict[str, Any] | None = None,
    **settings: Any,
) -> Request:
    settings = {"max_tokens": 9, "skip_special_tokens": False, **settings}
    request = Request("r", [1, 2, 3], SamplingParams(extra_args=arguments, **settings), None)
    request.append_output_token_ids(tokens)
    request.status = status
    return request


def read(reader: ToolReader, tokenizer: Any, text: str, **options: Any) -> list[ToolKey]:
    return reader.read(finish(tokenizer.encode(text + END_OF_TURN), **options))


def hermes_call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("It rains in Oslo.", []),
        ("", []),
        (hermes_call("weather", city="Oslo – Ø"), [ToolKey("weather")]),
        ("I will look.\n" + hermes_call("bash", command="cd /x && pytest -q | tail"), [ToolKey("bash", "pytest")]),
        (
            hermes_call("read", path="a.py") + "\n" + hermes_call("bash", command="git add ."),
            [ToolKey("read"), ToolKey("bash", "git add")],
        ),
        ('<tool_call>\n{"name": "weather", "arguments": {"city": "Os', []),
        ('<tool_call>\n{"name": "weather"}\n</tool_call>', []),
        ("<tool_call>\nnot json\n</tool_call>", []),
        (hermes_call("weather") + "<tool_call>", []),
    ],
)
def test_hermes(hermes: ToolReader, tokenizer: Any, text: str, keys: list[ToolKey]) -> None:
    assert read(hermes, tokenizer, text) == keys


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("It rains in {Oslo}.", []),
        ('{"name": "weather", "parameters": {"city": "Oslo"}}', [ToolKey("weather")]),
        ('<|python_tag|>{"name": "bash", "parameters": {"cmd": "npm test"}}', [ToolKey("bash", "npm test")]),
        (
            'Both: {"name": "read", "parameters": {}}; {"name": "write", "parameters": {"deep": {"er": 1}}}',
            [ToolKey("read"), ToolKey("write")],
        ),
        ('{"name": "weather", "parameters": {"city": ', []),
        ('{"title": "weather"}', []),
        ('{"name": 7, "parameters": {}}', []),
    ],
)
def test_llama3_json(model_path: str, tokenizer: Any, text: str, keys: list[ToolKey]) -> None:
    assert read(ToolReader(make_config(model_path, None), "llama3_json"), tokenizer, text) == keys


def test_the_last_token_belongs_to_the_reply_unless_it_ended_it(hermes: ToolReader, tokenizer: Any) -> None:
    tokens = tokenizer.encode("<tool_call>" + json.dumps({"name": "weather", "arguments": {}}))
    assert hermes.read(finish(tokens, RequestStatus.FINISHED_LENGTH_CAPPED)) == [ToolKey("weather")]
    assert hermes.read(finish(tokens, RequestStatus.FINISHED_STOPPED)) == []
    kept = finish(tokens, RequestStatus.FINISHED_STOPPED, include_stop_str_in_output=True, stop=["}"])
    assert hermes.read(kept) == [ToolKey("weather")]
    assert hermes.read(finish([], RequestStatus.FINISHED_ABORTED)) == []


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (f"<think>Shall I? {hermes_call('no')}</think>" + hermes_call("yes"), [ToolKey("yes")]),
        (f"Prompted to think. {hermes_call('no')}</think>" + hermes_call("yes"), [ToolKey("yes")]),
        (f"<think>{hermes_call('no')}</think>It rains.", []),
        # A chat template that was told not to reason: the reasoning parser waits for an end that never comes.
        (hermes_call("yes"), [ToolKey("yes")]),
    ],
)
def test_calls_count_behind_the_reasoning(model_path: str, tokenizer: Any, text: str, keys: list[ToolKey]) -> None:
    config = make_config(model_path, None, {"reasoning_parser": "deepseek_r1"})
    assert read(ToolReader(config, "hermes"), tokenizer, text) == keys


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (
            "qwen3_coder",
            "<tool_call>\n<function=bash>\n<parameter=command>\npytest\n</parameter>\n</function>\n</tool_call>",
        ),
        ("pythonic", "[bash(command='pytest')]"),
        ("glm45", "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>pytest</arg_value>\n</tool_call>"),
    ],
)
def test_parsers_do_without_the_declared_tools(model_path: str, tokenizer: Any, parser: str, text: str) -> None:
    reader = ToolReader(make_config(model_path, None), parser)
    assert read(reader, tokenizer, text) == [ToolKey("bash", "pytest")]


def test_only_the_end_of_a_very_long_reply_is_read(hermes: ToolReader, tokenizer: Any) -> None:
    filler = tokenizer.encode("word ") * MAX_TOKENS
    first, last = tokenizer.encode(hermes_call("first")), tokenizer.encode(hermes_call("last"))
    request = finish(first + filler + last, RequestStatus.FINISHED_LENGTH_CAPPED)
    assert hermes.read(request) == [ToolKey("last")]


def test_an_unknown_parser_is_named(model_path: str) -> None:
    with pytest.raises(InputError, match=r"^runtime\.tool_parser: hermse is unknown; choose from .*hermes, "):
        ToolReader(make_config(model_path, None), "hermse")


def test_a_parser_for_another_tokenizer_is_refused(tiny_model_path: str) -> None:
    with pytest.raises(InputError, match=r"^runtime\.tool_parser: .*llama3_json.*python_tag.*model's own parser$"):
        ToolReader(make_config(tiny_model_path, None), "llama3_json")


def test_without_a_tokenizer_nothing_is_read(model_path: str, warnings: pytest.LogCaptureFixture) -> None:
    reader = ToolReader(make_config(model_path, None, {"skip_tokenizer_init": True}), "hermes")
    assert "Tool calls are not read: the engine runs without a tokenizer" in warnings.text
    assert reader.read(finish([1, 2, 3], arguments=DECLARED)) == []


def test_a_parser_that_fails_is_reported_once_a_kind(
    hermes: ToolReader, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise errors.pop()

    errors: list[Exception] = [KeyError("x"), ZeroDivisionError("y"), KeyError("z")]
    monkeypatch.setattr(hermes._parser_class, "parse", fail)
    for _ in range(3):
        assert read(hermes, tokenizer, hermes_call("weather")) == []
    assert [record.getMessage().rpartition("calls: ")[2] for record in warnings.records] == [
        "KeyError: 'z'",
        "ZeroDivisionError: y",
    ]


def test_a_broken_call_is_logged_by_the_server_alone(
    hermes: ToolReader, tokenizer: Any, warnings: pytest.LogCaptureFixture
) -> None:
    broken = '<tool_call>{"name": broken</tool_call>'
    assert read(hermes, tokenizer, broken) == []
    assert warnings.records == []
    hermes._parser_class(tokenizer, None).tool_parser.extract_tool_calls(broken, None)
    (record,) = warnings.records
    text = "Error in extracting tool call from response. JSONDecodeError: Expecting value: line 1 column 10 (char 9)"
    assert logging.Formatter().format(record) == text


def test_replies_are_read_only_if_tools_were_declared(hermes: ToolReader, tokenizer: Any) -> None:
    tokens = tokenizer.encode(hermes_call("weather") + END_OF_TURN)
    assert calls_of(finish(tokens, arguments=DECLARED), hermes) == [ToolKey("weather")]
    assert calls_of(finish(tokens), hermes) == []
    assert calls_of(finish(tokens, arguments={TOOLS_DECLARED_ARGUMENT: "yes"}), hermes) == []
    assert calls_of(finish(tokens, arguments=DECLARED), None) == []


@pytest.mark.parametrize(
    ("declared", "tools"),
    [
        (["weather", "sur\ud800r", "b" * 100], ["weather", "(undeclared)", "sur?r", f"{'b' * 55}#"]),
        (["weather", 7], ["weather", "(undeclared)", "(undeclared)", "(undeclared)"]),
        ([], ["(undeclared)"] * 4),
        # Not all of the tools have names.
        (True, ["weather", "bash", "sur?r", f"{'b' * 55}#"]),
    ],
)
def test_what_was_not_declared_has_one_name(
    hermes: ToolReader, tokenizer: Any, declared: object, tools: list[str]
) -> None:
    """Names are what the model wrote, here half a surrogate pair as JSON spells it, and end as labels of metrics."""
    calls = [hermes_call(name, command="make") for name in ("weather", "bash", "sur\ud800r", "b" * 100)]
    tokens = tokenizer.encode("\n".join(calls) + END_OF_TURN)
    keys = calls_of(finish(tokens, arguments={TOOLS_DECLARED_ARGUMENT: declared}), hermes)
    assert [key.tool[: len(tool)] for key, tool in zip(keys, tools, strict=True)] == tools
    assert [key.command for key in keys] == ["" if key == UNDECLARED else "make" for key in keys]


@pytest.mark.parametrize(
    ("choice", "text", "keys"),
    [
        (True, '[{"name": "bash", "parameters": {"command": "make"}}]', [ToolKey("bash", "make")]),
        ("bash", '{"command": "make"}', [ToolKey("bash", "make")]),
        # The parser's own form, when it is left to the model.
        (None, '[bash(command="make")]', [ToolKey("bash", "make")]),
        (True, "It rains.", []),
    ],
)
def test_replies_that_had_to_call_tools_are_json(
    model_path: str, tokenizer: Any, choice: bool | str | None, text: str, keys: list[ToolKey]
) -> None:
    """So the server has structured outputs make them for this parser, whatever the model's own form is."""
    pythonic = ToolReader(make_config(model_path, None), "pythonic")
    arguments = {TOOLS_DECLARED_ARGUMENT: ["bash"], TOOL_CHOICE_ARGUMENT: choice}
    assert calls_of(finish(tokenizer.encode(text + END_OF_TURN), arguments=arguments), pythonic) == keys


def test_dictated_calls_go_before_the_text(hermes: ToolReader, tokenizer: Any) -> None:
    tokens = tokenizer.encode(hermes_call("weather") + END_OF_TURN)
    dictated = {**DECLARED, REPLY_ARGUMENT: tokens, CALLS_ARGUMENT: '[["bash", "{\\"command\\": \\"make\\"}"]]'}
    assert calls_of(finish(tokens, arguments=dictated), hermes) == [ToolKey("bash", "make")]
    assert calls_of(finish(tokens, arguments=dictated), None) == [ToolKey("bash", "make")]
    assert calls_of(finish(tokens, arguments={**dictated, CALLS_ARGUMENT: "[]"}), hermes) == []
    assert calls_of(finish(tokens, arguments={**dictated, CALLS_ARGUMENT: "["}), hermes) == []


def test_who_dictates_no_reply_dictates_no_calls(hermes: ToolReader, tokenizer: Any) -> None:
    """A reply of null is none, and passes the check of who may dictate."""
    tokens = tokenizer.encode(hermes_call("weather") + END_OF_TURN)
    for reply in ({}, {REPLY_ARGUMENT: None}):
        arguments = {**DECLARED, CALLS_ARGUMENT: '[["bash", "{}"]]', **reply}
        assert calls_of(finish(tokens, arguments=arguments), hermes) == [ToolKey("weather")]
        assert calls_of(finish(tokens, arguments=arguments), None) == []


@pytest.mark.parametrize(
    "text", ["", "{}", "null", '["bash"]', '[["bash"]]', '[["bash", {}]]', "[" * 10**5, 7, None, []]
)
def test_what_cannot_be_calls_is_told_apart_from_no_calls(text: object) -> None:
    assert read_forced_calls(text) is None


def test_reading_a_reply_takes_little(hermes: ToolReader, tokenizer: Any) -> None:
    text = "The tests fail because the parser drops the last line. I will read it and run them again. " * 15
    tokens = tokenizer.encode(text + hermes_call("bash", command="cd /repo && python -m pytest tests -q | tail -5"))
    assert 250 < len(tokens) < 800
    request = finish(tokens, RequestStatus.FINISHED_LENGTH_CAPPED, DECLARED)
    assert calls_of(request, hermes) == [ToolKey("bash", "pytest")]
    # Measured: 0.15 ms, on a busy machine 1.2. Of this thread's time: others may have the processor.
    took_s = timeit.repeat(lambda: calls_of(request, hermes), timer=time.thread_time, number=1, repeat=200)
    assert min(took_s) < 3e-3
