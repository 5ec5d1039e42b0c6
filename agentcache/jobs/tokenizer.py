"""Tokenizes texts and chats with the tokenizer of the model under test, from its folder or through its server."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx
from transformers import AutoTokenizer

from agentcache.errors import InputError, ServerError, in_one_line
from agentcache.models.hub import check_hub
from tool_runtime.agent.job import Message


class Tokenizer(Protocol):
    """A tokenizer as a replay needs it."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with nothing added."""
        ...

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, for_reply: bool
    ) -> list[int]:
        """Return the ids of a chat; with `for_reply` they end where the model's reply begins."""
        ...


class LocalTokenizer:
    """The tokenizer in the model's folder, with its own chat template."""

    def __init__(self, model_path: str) -> None:
        """Load it. Raises InputError if there is no such model, or it has no tokenizer or no chat template."""
        check_hub(model_path)
        try:
            # Whether a job fits the model is checked elsewhere, with one clear line; the tokenizer need not warn.
            self._tokenizer = AutoTokenizer.from_pretrained(model_path, model_max_length=sys.maxsize)
        except (OSError, ValueError) as error:
            raise InputError(f"model {model_path}: no tokenizer can be loaded ({str(error).splitlines()[0]})") from None
        if not self._tokenizer.chat_template:
            raise InputError(f"model {model_path}: its tokenizer has no chat template; use an instruction-tuned model")

    @property
    def chat_template(self) -> str:
        """Return the template's text."""
        return str(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with nothing added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, for_reply: bool
    ) -> list[int]:
        """Return the ids of a chat; with `for_reply` they end where the model's reply begins."""
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
        """Ask through `client`, which has the server's root as its base URL."""
        self._client = client
        self._model = model

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with nothing added."""
        return self._tokenize({"prompt": text, "add_special_tokens": False})

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, for_reply: bool
    ) -> list[int]:
        """Return the ids of a chat; with `for_reply` they end where the model's reply begins."""
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
    """Parse the calls' arguments, which are text in the API: templates get objects, as from vLLM."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"] or "{}")}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
