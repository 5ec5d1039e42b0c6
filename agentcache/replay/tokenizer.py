"""Texts and chats as token ids, by the tokenizer of the model under test: from its folder, or asked of its server."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx
from transformers import AutoTokenizer

from agentcache.errors import InputError, ServerError, in_one_line
from tool_runtime.job import Message


class Tokenizer(Protocol):
    """What a replay needs to know of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, nothing added."""
        ...

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, for_reply: bool
    ) -> list[int]:
        """The ids of a chat; with `for_reply` they end where the model is to go on."""
        ...


class LocalTokenizer:
    """The tokenizer in the model's folder, with its own chat template."""

    def __init__(self, model_path: str) -> None:
        """Raises InputError when the model has no tokenizer or no chat template."""
        try:
            # Whether a job fits the model is checked for the job, in one clear line; the tokenizer need not warn.
            self._tokenizer = AutoTokenizer.from_pretrained(model_path, model_max_length=sys.maxsize)
        except (OSError, ValueError) as error:
            raise InputError(f"model {model_path}: no tokenizer can be loaded ({str(error).splitlines()[0]})") from None
        if not self._tokenizer.chat_template:
            raise InputError(f"model {model_path}: its tokenizer has no chat template; use an instruction-tuned model")

    @property
    def chat_template(self) -> str:
        return str(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, for_reply: bool
    ) -> list[int]:
        rendered = self._tokenizer.apply_chat_template(
            [_for_template(message) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=for_reply,
            tokenize=True,
            return_dict=False,
        )
        return list(rendered)


class ServerTokenizer:
    """Asks a vLLM server's `/tokenize`."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        """`client` has the server's root as its base URL."""
        self._client = client
        self._model = model

    def encode(self, text: str) -> list[int]:
        return self._tokenize({"prompt": text, "add_special_tokens": False})

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, for_reply: bool
    ) -> list[int]:
        return self._tokenize(
            {"messages": list(messages), "tools": list(tools) or None, "add_generation_prompt": for_reply}
        )

    def _tokenize(self, body: Mapping[str, Any]) -> list[int]:
        try:
            response = self._client.post("/tokenize", json={"model": self._model, **body})
            response.raise_for_status()
        except httpx.HTTPError as error:
            cause = in_one_line(error)
            raise ServerError(f"{self._client.base_url}: /tokenize failed ({cause}); a replay needs it") from None
        return list(response.json()["tokens"])


def _for_template(message: Message) -> dict[str, Any]:
    """Arguments are text in the API; templates get the object that the text stands for, as vLLM gives them."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"] or "{}")}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
