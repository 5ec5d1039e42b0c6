"""Three sessions of an agent, without a GPU, and what `agentcache doctor` finds: two clients break their own cache.

It starts a server with the built-in model `tiny`. Its weights are random, so the replies are forced; requests, tools
and cache are real. `--base-url` takes a server that runs: agentcache serve tiny --forced-replies
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from local_tools import Folder
from openai import OpenAI
from openai_client import TOOLS, run_tool
from session import explain_failure

from agentcache.engine.constants import REPLY_ARGUMENT
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import ServerTokenizer
from tool_runtime.agent.job import ToolCall, Turn

START_S = 600
INSTRUCTIONS = "You are an agent that answers questions about the text files of a folder. Look before you answer. " * 12
SUB_INSTRUCTIONS = "You count the words of one file, and say that you have. " * 12
SUB_AGENT: Any = {
    "type": "function",
    "function": {
        "name": "ask_counter",
        "description": "Have another agent count the words of a file.",
        "parameters": {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]},
    },
}
QUESTION = "Which of README.md, session.py, openai_client.py and openai_agents.py has the most words?"
ANSWER = Turn("README.md has the most words.")


def call(name: str, file: str | None = None) -> Turn:
    thought = f"I will use {name} for {file or 'the folder'}, and keep in mind what I have seen of it so far. " * 3
    return Turn(thought, (ToolCall(name, json.dumps({"file": file} if file else {})),))


LOOKS = [call("list_files"), *(call("count_words", file) for file in ("README.md", "session.py", "openai_client.py"))]


@dataclass(frozen=True, slots=True)
class Client:
    """How one agent writes its prompts: its system message, made anew for each, and how many messages it keeps."""

    name: str
    replies: Sequence[Turn]
    system: Callable[[], str] = lambda: INSTRUCTIONS
    kept_messages: int = 1000
    # As Claude Code names the sub-agent that asks.
    headers: dict[str, str] = field(default_factory=dict)


COUNTER = Client(
    "sub-agent",
    [call("count_words", "openai_agents.py"), Turn("I have counted them.")],
    lambda: SUB_INSTRUCTIONS,
    headers={"x-claude-code-agent-id": "counter"},
)
CLIENTS = (
    Client("steady", [*LOOKS, call("ask_counter", "openai_agents.py"), ANSWER]),
    Client("dated", [*LOOKS, ANSWER], lambda: f"It is {datetime.now().isoformat()}. {INSTRUCTIONS}"),
    Client("shortened", [*LOOKS, ANSWER], kept_messages=4),
)


class Player:
    """Plays sessions at the server: each reply is dictated, then its tools run."""

    def __init__(self, openai: OpenAI, root: httpx.Client, folder: Folder) -> None:
        self._openai = openai
        self._model = openai.models.list().data[0].id
        self._encoder = ReplyEncoder(ServerTokenizer(root, self._model))
        self._folder = folder

    def play(self, client: Client, session: str, question: str) -> str:
        """The session's answer."""
        messages: list[Any] = [{"role": "user", "content": question}]
        for turn, forced in enumerate(client.replies):
            sent = [{"role": "system", "content": client.system()}, *messages[-client.kept_messages :]]
            reply = self._openai.chat.completions.create(
                model=self._model,
                messages=sent,
                tools=[*TOOLS, SUB_AGENT],
                extra_headers={"X-Session-ID": session, **client.headers},
                extra_body={"vllm_xargs": {REPLY_ARGUMENT: self._encoder.encode(forced)}},
            )
            assert reply.usage is not None
            details = reply.usage.prompt_tokens_details
            cached = (details and details.cached_tokens) or 0
            show(f"{client.name:>9}, turn {turn}: {cached:5} of {reply.usage.prompt_tokens:5} prompt tokens cached")
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for each in message.tool_calls or ():
                assert each.type == "function"
                result = self._run_tool(session, each.function.name, each.function.arguments)
                messages.append({"role": "tool", "tool_call_id": each.id, "content": result})
        return str(messages[-1].get("content"))

    def _run_tool(self, session: str, name: str, arguments: str) -> str:
        if name == "ask_counter":
            return self.play(COUNTER, session, f"Count the words of this file: {arguments}")
        return run_tool(self._folder, name, arguments)


@contextmanager
def start_server() -> Iterator[str]:
    """The URL of a server of this program's own, which ends with it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Of the texts it shows a few words where a prompt has changed.
    options = ["--forced-replies", "--agentcache", "runtime.show_text=true", "--host", "127.0.0.1", "--port", str(port)]
    show("starting a server with the model tiny; that takes a minute or two")
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "agentcache", "serve", "tiny", *options]
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until_ready(server, url := f"http://127.0.0.1:{port}", log)
            yield f"{url}/v1"
        finally:
            server.terminate()
            server.wait()


def wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Any) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            log.seek(0)
            raise SystemExit(f"the server did not start: {log.read().strip().splitlines()[-1]}")
        try:
            httpx.get(f"{url}/health").raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise SystemExit(f"the server did not start within {START_S} s")


def show(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", help="of a server that runs; one is started unless given")
    options = parser.parse_args()
    key = os.environ.get("OPENAI_API_KEY", "none")
    run = uuid.uuid4().hex[:4]
    folder = Folder(Path(__file__).parent)
    with start_server() if options.base_url is None else nullcontext(options.base_url) as base_url:
        root = base_url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"}
        with (
            explain_failure(base_url),
            OpenAI(base_url=base_url, api_key=key) as openai,
            httpx.Client(base_url=root, headers=headers, timeout=60) as client,
        ):
            player = Player(openai, client, folder)
            for each in CLIENTS:
                player.play(each, f"{each.name}-{run}", QUESTION)
        show("\nagentcache doctor finds:\n")
        subprocess.run([sys.executable, "-m", "agentcache", "doctor", root, "--api-key", key], check=True)


if __name__ == "__main__":
    main()
