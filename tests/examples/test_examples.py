"""The examples as a user runs them, against the real engine on the CPU."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from background_server import BLOCK, KEY, SharedServer
from forced_turns import Exchange, dictate

from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import LocalTokenizer
from tool_runtime.agent.job import ToolCall, Turn

EXAMPLES = Path(__file__).parents[2] / "examples"
ANSWER = Turn("poem.txt has the most words.")


@pytest.fixture(scope="module")
def url(shared_server: SharedServer) -> str:
    shared_server.use("agentcache")
    return f"{shared_server.url}/v1"


@pytest.fixture(scope="module")
def encoder(tiny_model_path: str) -> ReplyEncoder:
    return ReplyEncoder(LocalTokenizer(tiny_model_path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files, and one beside it that the tools must not read."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "note.txt").write_text("short")
    (folder / "poem.txt").write_text("one two three four five")
    (tmp_path / "secret.txt").write_text("secret " * 77)
    return folder


def run_example(name: str, url: str, replies: list[list[int]], *options: str) -> tuple[list[str], list[Exchange]]:
    """The lines it prints, and what it asked of the server but the list of models."""
    command = [sys.executable, str(EXAMPLES / name), "--base-url", url, *options]
    environment = os.environ | {"OPENAI_API_KEY": KEY}
    with dictate(replies) as script:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not script.replies
    return done.stdout.splitlines(), [each for each in script.exchanges if each.path != "/v1/models"]


def run_here(name: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """In this process, which has loaded what it needs."""
    monkeypatch.setattr(sys, "argv", [name, *options])
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.engine
@pytest.mark.parametrize("example", ["openai_client.py", "openai_agents.py"])
def test_example_runs_its_tools_and_hits_its_cached_turns(
    example: str, url: str, encoder: ReplyEncoder, folder: Path
) -> None:
    calls = (ToolCall("list_files", "{}"), ToolCall("count_words", '{"file": "poem.txt"}'))
    turns = (Turn("I will look.", calls), Turn("", (ToolCall("count_words", '{"file": "../secret.txt"}'),)), ANSWER)
    replies = [encoder.encode(turn) for turn in turns]
    printed, (*chats, end) = run_example(example, url, replies, "--folder", str(folder))

    assert printed[-1] == ANSWER.content
    session = printed[0].removeprefix("session ")
    assert [named_session(chat) for chat in chats] == [session] * 3
    assert (end.method, end.path) == ("DELETE", f"/agentcache/jobs/{session}")

    names, words, refusal = [m["content"] for m in chats[-1].request["messages"] if m["role"] == "tool"]
    assert (names, words) == ("note.txt\npoem.txt", "5")
    assert "outside the folder" in refusal

    for before, after in pairwise(chats):
        known = before.answer["prompt_token_ids"] + before.answer["choices"][0]["token_ids"]
        assert after.answer["prompt_token_ids"][: len(known)] == known
        # The reply's last token is never fed back, so its KV was never computed.
        expected = (len(known) - 1) // BLOCK * BLOCK
        assert after.answer["usage"]["prompt_tokens_details"]["cached_tokens"] == expected > 0


@pytest.mark.engine
def test_kept_job_is_not_ended(url: str, encoder: ReplyEncoder) -> None:
    printed, exchanges = run_example("openai_client.py", url, [encoder.encode(ANSWER)], "--keep-job")
    assert printed[-1] == ANSWER.content
    assert [each.method for each in exchanges] == ["POST"]


@pytest.mark.engine
@pytest.mark.parametrize("options", [[], ["--model", "any"]])
@pytest.mark.parametrize("example", ["openai_client.py", "openai_agents.py"])
def test_without_a_server_one_line_says_how_to_start_one(
    example: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_url = "http://127.0.0.1:9/v1"
    with pytest.raises(SystemExit) as ended:
        run_here(example, monkeypatch, "--base-url", dead_url, *options)
    # Python prints it, and the status is 1.
    line = str(ended.value.code)
    assert "\n" not in line
    assert line.startswith(f"{dead_url}: no server answers (")
    assert "agentcache serve MODEL" in line


@pytest.mark.engine
def test_the_doctor_names_what_two_of_three_sessions_do(
    url: str, shared_server: SharedServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # It counts no other test's requests.
    shared_server.use("agentcache")
    run_here("three_sessions.py", monkeypatch, "--base-url", url)
    printed = capfd.readouterr().out
    cached: dict[str, list[int]] = {}
    for name, tokens in re.findall(r"^ *(\S+), turn \d: +(\d+) of", printed, re.MULTILINE):
        cached.setdefault(name, []).append(int(tokens))
    assert {name: len(turns) for name, turns in cached.items()} == {
        **{"steady": 6, "sub-agent": 2, "dated": 5, "shortened": 5}
    }
    assert cached["steady"] == sorted(set(cached["steady"]))
    assert cached["sub-agent"][1] > 0
    assert cached["dated"] == [0] * 5
    # The system message alone stays, once the client has begun to cut.
    (left,) = set(cached["shortened"][2:])
    assert 0 < left < cached["shortened"][1]
    findings = re.findall(
        r"^\d\. (\d+ of \d+) prompts left the last turn of their job: ([a-z ]+);", printed, re.MULTILINE
    )
    assert findings == [("4 of 18", "system message changed"), ("3 of 18", "history truncated")]


def test_a_server_that_does_not_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "python"
    command.write_text("#!/bin/sh\necho first\necho error: no memory\nexit 1\n")
    command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(command))
    with pytest.raises(SystemExit, match=r"^the server did not start: error: no memory$"):
        run_here("three_sessions.py", monkeypatch)


def test_an_answer_that_is_an_error_is_one_line(tmp_path: Path) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        command = [sys.executable, str(EXAMPLES / "openai_client.py"), "--base-url", url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        server.shutdown()
        thread.join()
    assert (done.returncode, done.stderr) == (1, f"{url}: Error code: 404\n")


def named_session(chat: Exchange) -> str | None:
    return chat.request.get("session_id") or chat.headers.get("x-session-id")
