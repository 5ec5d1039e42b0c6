from __future__ import annotations

from collections.abc import Sequence

from fake_vllm import ROLE, Chunk, call_delta, delta, usage
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk

from tool_runtime.agent.job import ToolCall
from tool_runtime.agent.reply import Reply, ReplyReader

FRAME: Chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "m"}


def reader_of(chunks: Sequence[Chunk]) -> ReplyReader:
    reader = ReplyReader()
    for chunk in chunks:
        reader.add(ChatCompletionChunk.model_validate(FRAME | chunk))
    return reader


def read(chunks: Sequence[Chunk]) -> Reply:
    return reader_of(chunks).reply()


@st.composite
def split_calls(draw: st.DrawFn) -> tuple[list[ToolCall], list[Chunk]]:
    """Calls, and deltas of them: arguments cut anywhere, pieces of different calls interleaved."""
    calls = []
    pieces: list[list[Chunk]] = []
    for index in range(draw(st.integers(1, 3))):
        parts = draw(st.lists(st.text(max_size=8), min_size=1, max_size=6))
        calls.append(ToolCall(f"tool_{index}", "".join(parts), f"id-{index}"))
        head = call_delta(index, parts[0], id=f"id-{index}", name=f"tool_{index}")
        pieces.append([head, *(call_delta(index, part) for part in parts[1:])])
    turns = draw(st.permutations([index for index, queue in enumerate(pieces) for _ in queue]))
    return calls, [pieces[index].pop(0) for index in turns]


@given(split_calls())
def test_calls_come_out_whole_and_in_order_however_split(case: tuple[list[ToolCall], list[Chunk]]) -> None:
    calls, deltas = case
    assert read([ROLE, *deltas, delta(finish_reason="tool_calls")]).tool_calls == tuple(calls)


@given(st.text(min_size=1), st.data())
def test_however_text_is_split_it_comes_out_whole(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read([ROLE, *(delta(content=part) for part in parts)]).content == text


def test_a_name_repeated_in_every_delta_is_taken_once() -> None:
    reply = read([call_delta(0, '{"a"', id="x", name="add"), call_delta(0, ": 1}", id="x", name="add")])
    assert reply.tool_calls == (ToolCall("add", '{"a": 1}', "x"),)


def test_what_vllm_tells_is_read() -> None:
    metrics = {"queue_time_ms": 1500.0, "time_to_first_token_ms": 250.0, "generation_time_ms": None}
    reply = read(
        [
            ROLE | {"prompt_token_ids": [1, 2, 3]},
            delta(content="a", token_ids=[7, 8]),
            delta(token_ids=[9], finish_reason="stop"),
            usage(3, 3, cached=2, metrics=metrics),
        ]
    )
    assert reply == Reply("a", (), "stop", 3, 3, 2, 1.5, 0.25, None, (1, 2, 3), (7, 8, 9))


def test_a_chunk_after_the_last_does_not_undo_the_end() -> None:
    assert read([ROLE, delta(finish_reason="length"), delta()]).finish_reason == "length"


def test_what_the_server_does_not_tell_is_none() -> None:
    reply = read([ROLE, delta(content="a")])
    assert reply == Reply("a", (), None, None, None, None, None, None, None, None, None)
    assert read([usage(3, 1)]).cached_tokens is None


def test_only_something_generated_is_output() -> None:
    quiet = [ROLE, ROLE | {"prompt_token_ids": [1]}, delta(token_ids=[]), delta(finish_reason="stop"), usage(1, 1)]
    assert [reader_of([chunk]).has_output for chunk in quiet] == [False] * len(quiet)
    loud = [delta(content="a"), call_delta(0, "", id="x", name="ls"), delta(token_ids=[5]), delta(reasoning="Hm")]
    assert [reader_of([chunk]).has_output for chunk in loud] == [True] * len(loud)
