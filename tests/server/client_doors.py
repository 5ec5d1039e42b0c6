"""The doors of the server: how a question, a reply with a call and the call's result look at each of them."""

from __future__ import annotations

from typing import Any

from tool_runtime.agent.job import ToolCall, Turn

LONG = "You are an agent that looks things up and says what it has found. " * 8
CALLS = Turn("I will look.", (ToolCall("weather", '{"city": "Oslo"}'),))
ANSWER = Turn("It rains in Oslo.")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
Body = dict[str, Any]


class Door:
    """One API of the server: how a question, a reply with a call and its result look there."""

    path: str

    def first(self, question: str) -> Body:
        raise NotImplementedError

    def second(self, question: str, thought: str) -> Body:
        """Send the reply back in other words than it came in."""
        raise NotImplementedError


class Chat(Door):
    path = "/v1/chat/completions"

    def first(self, question: str) -> Body:
        tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
        messages = [{"role": "system", "content": LONG}, {"role": "user", "content": question}]
        return {"messages": messages, "tools": [tool]}

    def second(self, question: str, thought: str) -> Body:
        body = self.first(question)
        function = {"name": "weather", "arguments": '{"city":"Oslo"}'}
        call = {"id": "call_1", "type": "function", "function": function}
        reply = {"role": "assistant", "content": thought, "tool_calls": [call]}
        body["messages"] += [reply, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
        return body


class Responses(Door):
    path = "/v1/responses"

    def first(self, question: str) -> Body:
        tool = {"type": "function", "name": "weather", "parameters": SCHEMA}
        message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": question}]}
        return {"instructions": LONG, "input": [message], "tools": [tool], "store": False}

    def second(self, question: str, thought: str) -> Body:
        body = self.first(question)
        call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Oslo"}'}
        text = {"type": "output_text", "text": thought, "annotations": []}
        reply = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [text]}
        body["input"] += [reply, call, {"type": "function_call_output", "call_id": "call_1", "output": "rain"}]
        return body


class Messages(Door):
    path = "/v1/messages"

    def first(self, question: str) -> Body:
        tool = {"name": "weather", "input_schema": SCHEMA}
        return {
            "system": LONG,
            "messages": [{"role": "user", "content": question}],
            "tools": [tool],
            "max_tokens": 200,
        }

    def second(self, question: str, thought: str) -> Body:
        body = self.first(question)
        call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}
        body["messages"] += [
            {"role": "assistant", "content": [{"type": "text", "text": thought}, call]},
            {"role": "user", "content": [result]},
        ]
        return body
