"""Requests and tools by each convention, once each however often traced, with their sessions and whole sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recorded_spans import Writer, ask

from agentcache.errors import InputError

USAGE = "gen_ai.usage"
# Each convention: a request, by its session, prompt, reply, and word for a reply that asks for tools; and a tool.
CONVENTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "OpenTelemetry before v1.27": (
        {"gen_ai.system": "openai", f"{USAGE}.prompt_tokens": 1000, f"{USAGE}.completion_tokens": 9}
        | {"gen_ai.response.finish_reasons": ["tool_calls"]},
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look"},
    ),
    "OpenInference": (
        {"openinference.span.kind": "LLM", "llm.token_count.prompt": 1000, "llm.token_count.completion": 9}
        | {"session.id": "s1", "llm.finish_reason": "tool_calls"},
        {"openinference.span.kind": "TOOL", "tool.name": "look", "session.id": "s1"},
    ),
    "OpenLLMetry": (
        {"llm.request.type": "chat", f"{USAGE}.prompt_tokens": 1000, f"{USAGE}.completion_tokens": 9}
        | {"traceloop.association.properties.session_id": "s1", "gen_ai.completion.0.finish_reason": "tool_calls"},
        {"traceloop.span.kind": "tool", "traceloop.entity.name": "look"},
    ),
    "Vercel's AI SDK 4": (
        {"ai.operationId": "ai.streamText.doStream", "ai.usage.promptTokens": 1000, "ai.usage.completionTokens": 9}
        | {"ai.telemetry.metadata.sessionId": "s1", "ai.response.finishReason": "tool-calls"},
        {"ai.operationId": "ai.toolCall", "ai.toolCall.name": "look"},
    ),
    "Claude Code": (
        {
            "span.type": "llm_request",
            "session.id": "s1",
            "input_tokens": 4,
            "output_tokens": 9,
            "stop_reason": "tool_use",
        }
        | {"cache_read_tokens": 900, "cache_creation_tokens": 96, "success": True},
        {"span.type": "tool", "session.id": "s1", "tool_name": "look"},
    ),
    "pydantic-ai before its tools had an operation": (
        ask(1000, 9, "tool_call", **{"gen_ai.conversation.id": "s1"}),
        {"gen_ai.tool.name": "look"},
    ),
    "a voice agent that names no operation": (
        {"gen_ai.request.model": "m", f"{USAGE}.input_tokens": 1000.0, f"{USAGE}.output_tokens": 9.0}
        | {"gen_ai.response.finish_reasons": '["tool_calls"]'},
        {"gen_ai.tool.name": "look"},
    ),
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_each_convention_is_read(convention: str, tmp_path: Path) -> None:
    request, tool = CONVENTIONS[convention]
    writer = Writer()
    root = writer.add("turn", 0, 9)
    writer.add("request", 0, 2, root, **request)
    # It begins while the reply is still streamed.
    writer.add("look", 1.5, 2, root, **tool)
    (line,) = writer.read(tmp_path).requests
    assert (line.input_length, line.output_length, line.end, line.called) == (1000, 9, "calls", ["look"])
    assert line.session in {"s1", "t1"}
    assert ("s1" in [*request.values()]) == (line.session == "s1")


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_request_without_sizes_is_told(convention: str, tmp_path: Path) -> None:
    request, _ = CONVENTIONS[convention]
    writer = Writer()
    writer.add("request", 0, 2, **{key: value for key, value in request.items() if "oken" not in key})
    with pytest.raises(
        InputError, match=r"gen_ai\.usage\.input_tokens(: is missing; the instr| .* but request 1; trace)"
    ):
        writer.read(tmp_path)


APART = [
    (f"{USAGE}.cache_read.input_tokens", f"{USAGE}.cache_creation.input_tokens"),
    (f"{USAGE}.cache_read_input_tokens", f"{USAGE}.cache_creation_input_tokens"),
    (f"{USAGE}.details.cache_read_tokens", f"{USAGE}.details.cache_write_tokens"),
]


@pytest.mark.parametrize(("read", "written"), APART)
def test_cached_tokens_count_where_they_are_apart(read: str, written: str, tmp_path: Path) -> None:
    writer = Writer()
    # The first alone could be whole; what wrote the second counts apart.
    writer.add("chat", 0, 1, **ask(2000, 50, **{read: 100, written: 500}))
    writer.add("chat", 2, 1, **ask(4, 50, **{read: 2600, written: 300}))
    # Another instrumentation's prompts are whole.
    writer.add("chat", 4, 1, scope="other", **ask(4000, 50, **{read: 2600, written: 300}))
    recording = writer.read(tmp_path)
    assert [line.input_length for line in recording.requests] == [2600, 2904, 4000]
    assert [*recording.describe_losses()] == []


def test_prompts_that_cannot_be_whole_are_told(tmp_path: Path) -> None:
    writer = Writer()
    for turn in range(3):
        writer.add("chat", 2 * turn, 1, **ask(900 if turn == 0 else 4, 50))
    (told,) = writer.read(tmp_path).describe_losses()
    assert "taken to repeat nothing: 1 of 3. If the spans leave out cached tokens, have them record these" in told
    writer.add("chat", 9, 1, **ask(0, 5))
    assert writer.read(tmp_path).broken[0].endswith("gen_ai.usage.input_tokens: 0 are no prompt")


def test_layers_that_trace_one_request_tell_of_it_once(tmp_path: Path) -> None:
    writer = Writer()
    outer = writer.add("ai.streamText", 0, 9, **{"ai.operationId": "ai.streamText", "ai.usage.inputTokens": 2500})
    framework = writer.add(
        "ChatModel", 0, 3, outer, scope="framework", **ask(1200, 30, "tool_calls", **{"session.id": "s"})
    )
    client = writer.add("chat m", 0.1, 2.8, framework, scope="client", **ask(1200, 30, "tool_calls"))
    writer.add("POST", 0.2, 2.6, client)
    # The framework alone has the sizes, as of a stream whose usage the client did not see.
    framework = writer.add("ChatModel", 5, 3, outer, scope="framework", **ask(1300, 30, **{"session.id": "s"}))
    writer.add("chat m", 5.1, 2.8, framework, scope="client", **{"gen_ai.operation.name": "chat"})
    recording = writer.read(tmp_path)
    assert [(line.input_length, line.session) for line in recording.requests] == [(1200, "s"), (1300, "s")]
    assert recording.broken == ()
    assert [*recording.describe_losses()] == [
        "Spans that are no request and no tool, passed over: 2 (ai.streamText 1, POST 1).",
        "Spans of a request or tool that another span tells of, too, counted once: 2.",
    ]


def test_a_client_and_its_server_tell_of_a_reply_once(tmp_path: Path) -> None:
    writer = Writer()
    for turn, prompt in enumerate((1200, 1300)):
        reply = {"gen_ai.response.id": f"chatcmpl-{turn}"}
        writer.add("chat m", 5 * turn, 3, trace="client", **ask(prompt, 30, **reply))
        writer.add(
            "llm_request",
            5 * turn + 0.1,
            2.9,
            trace=f"{turn}",
            **ask(prompt, 30, **{"gen_ai.request.id": f"chatcmpl-{turn}"}),
        )
        writer.add(
            "chat m", 5 * turn + 0.1, 2.8, trace="job", **ask(prompt, 30, **reply, **{"gen_ai.conversation.id": "s"})
        )
    # Mocks give all replies one id.
    writer.add("chat m", 20, 3, trace="client", **ask(1400, 30, **{"gen_ai.response.id": "chatcmpl-0"}))
    found = [(line.input_length, line.session) for line in writer.read(tmp_path).requests]
    assert found == [(1200, "s"), (1300, "s"), (1400, "client")]


def test_layers_that_stand_side_by_side_tell_once_too(tmp_path: Path) -> None:
    writer = Writer()
    for began in (0, 0.5):  # Two at once, each traced by a callback and in the client, which knows no parent.
        writer.add("ChatModel", began, 3, scope="framework", **ask(1200, 30, **{"session.id": "s"}))
        writer.add("chat m", began + 0.1, 2.8, scope="client", **ask(1200, 30))
    # One client's requests of the same sizes are several.
    writer.add("chat m", 0.7, 1, scope="client", **ask(1200, 30))
    assert len(writer.read(tmp_path).requests) == 3


def test_requests_inside_of_a_tool_are_others(tmp_path: Path) -> None:
    writer = Writer()
    outer = writer.add("chat", 0, 9, **ask(1200, 30, "tool_calls"))
    tool = writer.add(
        "execute_tool", 1, 7, outer, gen_ai__operation__name="execute_tool", gen_ai__tool__name="delegate"
    )
    # A protocol's client tells of the same tool again.
    writer.add("tools/call", 1, 6, tool, gen_ai__operation__name="execute_tool", gen_ai__tool__name="delegate")
    writer.add("chat", 2, 3, tool, **ask(700, 30, **{"gen_ai.conversation.id": "sub"}))
    first, inner = writer.read(tmp_path).requests
    assert (first.session, first.called, inner.session, inner.called) == ("t1", ["delegate"], "sub", [])


@pytest.mark.parametrize("named", ["root", "request"])
def test_a_trace_a_turn_is_one_session(named: str, tmp_path: Path) -> None:
    writer, of = Writer(), {"session.id": "s1"}
    for turn in range(3):
        trace, began = f"t{turn}", 10.0 * turn
        root = writer.add("turn", began, 8, trace=trace, **(of if named == "root" else {}))
        sizes = ask(1000 + 300 * turn, 50, "tool_calls")
        writer.add("chat", began, 2, root, trace=trace, **sizes | (of if named == "request" else {}))
        writer.add(
            "tool",
            began + 3,
            2,
            root,
            trace=trace,
            **{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look"},
        )
    lines = writer.read(tmp_path).requests
    assert [(line.session, line.called) for line in lines] == [("s1", ["look"])] * 3
    assert lines[2].hash_ids[:2] == lines[1].hash_ids[:2]


def test_tools_go_to_the_conversation_beside_them(tmp_path: Path) -> None:
    writer = Writer()
    for number in (1, 2):  # Two conversations of one batch: a trace, and a person's session over both.
        agent = writer.add("agent", number, 9)
        writer.add("chat", number, 1, agent, **ask(1000, 9, "tool_calls", **{"gen_ai.conversation.id": f"c{number}"}))
        tool = {"gen_ai.tool.name": f"tool-{number}", "session.id": "person"}
        writer.add("execute_tool", number + 2, 1, agent, **tool)
    assert {line.session: line.called for line in writer.read(tmp_path).requests} == {
        "c1": ["tool-1"],
        "c2": ["tool-2"],
    }


@pytest.mark.parametrize(
    "mark", [{"error.type": "timeout"}, {"success": False}, {"error": True}, {"otel.status_code": "ERROR"}]
)
def test_failed_requests_are_told_apart(mark: dict[str, Any], tmp_path: Path) -> None:
    writer = Writer()
    writer.add("chat", 0, 1, **ask(1000, 9, **mark))
    assert [line.end for line in writer.read(tmp_path).requests] == ["failed"]
