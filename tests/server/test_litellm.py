"""LiteLLM's proxy in front of our server, as docs/clients.md sets it up: `make test-litellm` runs this."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from background_server import AUTHORIZED, KEY, SharedServer
from client_doors import ANSWER, CALLS, Chat, Door, Messages, Responses
from forced_turns import dictate
from held_ports import hold_ports

import agentcache
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import LocalTokenizer

VARIABLE = "AGENTCACHE_LITELLM"
LITELLM = os.environ.get(VARIABLE)
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(LITELLM is None, reason=f"{VARIABLE} names no executable of LiteLLM: make test-litellm"),
]
GUIDE = Path(agentcache.__file__).parents[1] / "docs" / "clients.md"
SETTING = "general_settings:\n  forward_client_headers_to_llm_api: true\n"
# As LiteLLM's own clients name a session, vLLM's, and Claude Code.
HEADERS = ("x-litellm-session-id", "X-Session-ID", "x-claude-code-session-id")


class Proxy:
    """What is asked through it."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {key}"}

    def ask(self, door: Door, session: str, header: str) -> None:
        """Ask a question and bring the tool's result."""
        for body in (door.first(session), door.second(session, "I will look.")):
            headers = {**self._headers, header: session}
            httpx.post(
                f"{self.url}{door.path}", json={**body, "model": "tiny"}, headers=headers, timeout=120
            ).raise_for_status()

    def is_up(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/liveliness", timeout=5).is_success
        except httpx.HTTPError:
            return False


@pytest.fixture(scope="module")
def proxy(shared_server: SharedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """The guide's configuration, which has one setting for the headers."""
    (configuration,) = re.findall(r"^```\n(model_list:\n.*?)```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert SETTING in configuration
    for word, value in {"MODEL": "tiny", "http://127.0.0.1:8000": shared_server.url, "KEY": KEY}.items():
        configuration = configuration.replace(word, value)
    folder, key = tmp_path_factory.mktemp("litellm"), f"sk-{secrets.token_hex(24)}"
    (folder / "config.yaml").write_text(configuration)
    # Its list of models and prices would come from the network.
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with hold_ports(1) as (port,), (folder / "log").open("wb") as log:
        options = ("--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False")
        process = subprocess.Popen(
            [str(LITELLM), *options],
            env={**environment, "LITELLM_MASTER_KEY": key},
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            proxy = Proxy(f"http://127.0.0.1:{port}", key)
            while not proxy.is_up():
                assert process.poll() is None, (folder / "log").read_text()[-4000:]
                time.sleep(0.5)
            yield proxy
        finally:
            process.terminate()
            process.wait()


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("door", [Chat(), Responses(), Messages()], ids=["chat", "responses", "messages"])
def test_a_session_keeps_its_name(
    shared_server: SharedServer, proxy: Proxy, tiny_model_path: str, door: Door, header: str
) -> None:
    shared_server.use("agentcache")
    encoder, session = ReplyEncoder(LocalTokenizer(tiny_model_path)), secrets.token_hex(8)
    with dictate([encoder.encode(CALLS), encoder.encode(ANSWER)]):
        proxy.ask(door, session, header)
    found = httpx.get(f"{shared_server.url}/agentcache/jobs/{session}", headers=AUTHORIZED).raise_for_status()
    (job,) = found.json()["jobs"]
    assert [turn["tools"] for turn in job["turns"]] == [["weather"], []]
    assert job["turns"][1]["cached_tokens"] > 0
    assert job["pins"][0]["cause"] == "returned"
