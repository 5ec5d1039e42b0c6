"""Every reply says how many of its prompt's tokens were cached, as the engine counted them: so it can be billed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from background_server import AUTHORIZED, BLOCK, SharedServer
from client_doors import LONG, Body, Chat, Door, Messages, Responses

from agentcache.server import snapshot_reader

pytestmark = pytest.mark.engine


class Completions(Door):
    path = "/v1/completions"

    def first(self, question: str) -> Body:
        return {"prompt": LONG + question}


DOORS = {"chat": Chat(), "responses": Responses(), "messages": Messages(), "completions": Completions()}


@pytest.fixture(scope="module")
def server(shared_server: SharedServer) -> Iterator[SharedServer]:
    with pytest.MonkeyPatch.context() as patch:
        # Every read is a fresh one.
        patch.setattr(snapshot_reader, "MIN_INTERVAL_S", 0.0)
        yield shared_server


def ask(server: SharedServer, door: Door, session: str, *, stream: bool) -> Body:
    """Ask the same of the session again; return the usage of the reply."""
    limit = "max_output_tokens" if isinstance(door, Responses) else "max_tokens"
    body = {**door.first("What is the weather?"), "model": "tiny", limit: 4, "stream": stream, "session_id": session}
    if stream and isinstance(door, Chat | Completions):
        body["stream_options"] = {"include_usage": True}
    answer = httpx.post(f"{server.url}{door.path}", json=body, headers=AUTHORIZED, timeout=60).raise_for_status()
    return find_usage(read_events(answer.text)) if stream else dict(answer.json()["usage"])


def read_events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def find_usage(events: list[Any]) -> Body:
    """Find the usage of the last event that has one, as clients do."""
    told = [event.get("usage") or (event.get("response") or {}).get("usage") for event in events]
    return dict([usage for usage in told if usage][-1])


def count(usage: Body) -> tuple[int, int]:
    """Return the tokens of the prompt, and of those the cached ones."""
    if "cache_read_input_tokens" in usage:
        read, created = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        return usage["input_tokens"] + read + created, read
    if "input_tokens_details" in usage:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_usage_is_what_the_engine_counted(server: SharedServer, door: Door, stream: bool) -> None:
    # With an empty cache the first turn hits nothing, whatever other tests have sent.
    server.use("agentcache")
    session = str(uuid4())
    told = [count(ask(server, door, session, stream=stream)) for _ in range(2)]
    found = httpx.get(f"{server.url}/agentcache/jobs/{session}", headers=AUTHORIZED, timeout=30).json()["jobs"]
    turns = [turn for job in found for turn in job["turns"]]
    assert told == [(turn["prompt_tokens"], turn["cached_tokens"]) for turn in turns]
    (length, first), (_, second) = told
    assert (first, second) == (0, (length - 1) // BLOCK * BLOCK)
    assert second > 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_messages_tell_what_they_put_into_the_cache(server: SharedServer, stream: bool) -> None:
    server.use("agentcache")
    first, second = (ask(server, Messages(), "one", stream=stream) for _ in range(2))
    length = first["input_tokens"] + first["cache_creation_input_tokens"]
    # Whole blocks are cached; what is left over is computed each time.
    assert first["cache_creation_input_tokens"] == length // BLOCK * BLOCK
    assert second["cache_read_input_tokens"] + second["cache_creation_input_tokens"] == length // BLOCK * BLOCK
