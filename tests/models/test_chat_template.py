from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import pick_size
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import renderer_from_config
from vllm.renderers.params import ChatParams
from vllm.tool_parsers import ToolParserManager

Message = dict[str, Any]

CONTROL = re.compile(r"</?tool_(call|response)>|<\|(im_start|im_end|endoftext)\|>")
# The parsers take it, the one for Hermes reads nothing of it.
REQUEST = ChatCompletionRequest(messages=[], seed=None)
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(lambda text: not CONTROL.search(text))
names = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(st.tuples(names, st.dictionaries(texts, values, max_size=3)), max_size=3)
few = settings(max_examples=pick_size(40, 150), deadline=None)


@pytest.fixture(scope="module")
def renderer(tiny_model_path: str) -> Any:
    """What vLLM's server makes prompts with."""
    return renderer_from_config(EngineArgs(model=tiny_model_path, dtype="float32").create_engine_config())


def render(renderer: Any, messages: list[Message], *, for_reply: bool, tools: Any = TOOLS) -> list[int]:
    arguments = {"add_generation_prompt": for_reply, "tools": tools, "tokenize": True}
    # vLLM writes into the messages that it is given.
    _, prompt = renderer.render_messages(copy.deepcopy(messages), ChatParams(chat_template_kwargs=arguments))
    return list(prompt["prompt_token_ids"])


def assistant(content: str | None, made_calls: list[tuple[str, Any]]) -> Message:
    """A message of the API: arguments are JSON text there."""
    message: Message = {"role": "assistant", "content": content}
    if made_calls:
        message["tool_calls"] = [
            {"id": f"call-{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for i, (name, arguments) in enumerate(made_calls)
        ]
    return message


def written(renderer: Any, messages: list[Message], reply: Message) -> list[int]:
    """The ids of the reply with its end of turn, as the model would write it behind the prompt."""
    prompt = render(renderer, messages, for_reply=True)
    whole = render(renderer, [*messages, reply], for_reply=False)
    assert whole[: len(prompt)] == prompt
    return whole[len(prompt) : whole.index(renderer.get_eos_token_id(), len(prompt)) + 1]


def text_of(renderer: Any, reply: list[int]) -> str:
    return str(renderer.get_tokenizer().decode(reply, skip_special_tokens=True))


def parse(renderer: Any, text: str) -> Message:
    """The message that vLLM's server answers with."""
    parser = ToolParserManager.get_tool_parser("hermes")(renderer.get_tokenizer())
    parsed = parser.extract_tool_calls(text, REQUEST)
    made_calls = [call.function for call in parsed.tool_calls]
    return assistant(parsed.content, [(call.name, json.loads(call.arguments)) for call in made_calls])


def parse_stream(renderer: Any, pieces: list[str]) -> Message:
    """The same, put together from a stream."""
    parser = ToolParserManager.get_tool_parser("hermes")(renderer.get_tokenizer())
    text, content = "", ""
    made_calls: dict[int, list[str]] = {}
    for piece in pieces:
        delta = parser.extract_tool_calls_streaming(text, text + piece, piece, [], [], [], REQUEST)
        text += piece
        content += (delta and delta.content) or ""
        for call in (delta.tool_calls if delta else None) or []:
            made, function = made_calls.setdefault(call.index, ["", ""]), call.function
            made[0] += (function and function.name) or ""
            made[1] += (function and function.arguments) or ""
    return assistant(content, [(name, json.loads(arguments)) for name, arguments in made_calls.values()])


def test_conversation_looks_like_this(renderer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        assistant("Let me look.", [("search", {"q": 'é"<'}), ("now", {})]),
        {"role": "tool", "tool_call_id": "call-0", "content": "Ada"},
        assistant(None, [("search", {}), ("now", {})]),
        {"role": "tool", "tool_call_id": "call-1", "content": "noon"},
        assistant("Ada.", []),
    ]
    tokens = render(renderer, messages, for_reply=True)
    assert renderer.get_tokenizer().decode(tokens) == (
        "<|im_start|>system\nBe brief.\n# Tools\n\n"
        'You may call the functions below. For each call write a JSON object with "name" and "arguments" '
        "inside <tool_call></tool_call>.\n\n"
        '<tools>\n{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}\n</tools>'
        "<|im_end|>\n"
        "<|im_start|>user\nWho?<|im_end|>\n"
        "<|im_start|>assistant\nLet me look.\n"
        '<tool_call>\n{"name": "search", "arguments": {"q": "é\\"<"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nAda\n</tool_response><|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nAda.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_nothing_is_said_of_tools_where_there_are_none(renderer: Any) -> None:
    tokens = render(renderer, [{"role": "user", "content": "Hi"}], for_reply=True, tools=None)
    assert renderer.get_tokenizer().decode(tokens) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@few
@given(content=texts, made_calls=calls)
def test_reply_is_parsed_into_what_it_was_rendered_from(
    renderer: Any, content: str, made_calls: list[tuple[str, Any]]
) -> None:
    reply = assistant(content, made_calls)
    message = parse(renderer, text_of(renderer, written(renderer, [{"role": "user", "content": "?"}], reply)))
    assert message.get("tool_calls") == reply.get("tool_calls")
    assert (message["content"] or "").strip() == content.strip()


@few
@given(content=texts, made_calls=calls, data=st.data())
def test_streamed_reply_is_parsed_into_what_it_was_rendered_from(
    renderer: Any, content: str, made_calls: list[tuple[str, Any]], data: st.DataObject
) -> None:
    # What could be the start of a tag is held back by vLLM until more comes.
    content = re.sub(r"<[a-z_]*$", "", content.strip())
    reply = assistant(content, made_calls)
    text = text_of(renderer, written(renderer, [{"role": "user", "content": "?"}], reply))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=8))) if len(text) > 1 else []
    message = parse_stream(renderer, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    assert message.get("tool_calls") == reply.get("tool_calls")
    assert message["content"].strip() == content.strip()


@few
@given(
    messages=st.lists(st.tuples(st.sampled_from(["system", "user"]), texts), min_size=1, max_size=3),
    turns=st.lists(st.tuples(texts, calls), min_size=1, max_size=3),
    result=texts,
)
def test_next_prompt_extends_prompt_and_reply_token_by_token(
    renderer: Any, messages: list[tuple[str, str]], turns: list[tuple[str, Any]], result: str
) -> None:
    history: list[Message] = [{"role": role, "content": text} for role, text in messages]
    for content, made_calls in turns:
        prompt = render(renderer, history, for_reply=True)
        reply = written(renderer, history, assistant(content, made_calls))
        message = parse(renderer, text_of(renderer, reply))
        results = [{"role": "tool", "tool_call_id": f"call-{i}", "content": result} for i in range(len(made_calls))]
        history += [message, *(results or [{"role": "user", "content": result}])]
        assert render(renderer, history, for_reply=True)[: len(prompt) + len(reply)] == prompt + reply
