"""A name is looked for on a hub of our own, in a process that knows no other."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ASK = """
import sys
from agentcache.models.hub import check_hub
name, *revision = sys.argv[1:]
check_hub(name, revision=revision[0] if revision else None)
"""
# By the model's name: status and what the hub calls the error.
ANSWERS = {
    "none": (404, "RepoNotFound"),
    "gated": (403, "GatedRepo"),
    "renamed": (404, "RevisionNotFound"),
    "mistral": (404, "EntryNotFound"),
    "busy": (503, ""),
    "there": (200, ""),
}


class Hub(BaseHTTPRequestHandler):
    asked: list[str]

    def do_HEAD(self) -> None:
        _, _, name, *_ = self.path.split("/")
        self.asked.append(self.path)
        status, error = ANSWERS[name]
        self.send_response(status)
        self.send_header("X-Error-Code", error)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Hub.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def ask(cache: Path, hub: str, *arguments: str, **environment: str) -> str | None:
    """The text of the refusal."""
    given = {"HF_ENDPOINT": hub, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0", **environment}
    done = subprocess.run(
        [sys.executable, "-c", ASK, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=cache,
        env={**os.environ, **given},
    )
    if done.returncode == 0:
        assert done.stderr == ""
        return None
    return done.stderr.splitlines()[-1].removeprefix("agentcache.errors.InputError: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("owner/none", "model owner/none: there is no such folder, and {hub} has no such model; give a folder"),
        ("owner/gated", "model owner/gated: its owner grants access at {hub}/owner/gated; then set HF_TOKEN"),
        ("no/such/folder", "model no/such/folder: there is no such folder; give a folder"),
    ],
)
def test_what_the_hub_does_not_give_is_refused(hub: str, tmp_path: Path, name: str, text: str) -> None:
    assert (ask(tmp_path, hub, name) or "").startswith(text.format(hub=hub))


def test_an_unknown_revision_is_refused(hub: str, tmp_path: Path) -> None:
    assert ask(tmp_path, hub, "owner/renamed", "v9") == f"--revision v9: {hub}/owner/renamed has none of that name"
    assert Hub.asked == ["/owner/renamed/resolve/v9/config.json"]


@pytest.mark.parametrize("name", ["owner/there", "owner/mistral", "owner/busy"])
def test_the_rest_is_vllms_to_judge(hub: str, tmp_path: Path, name: str) -> None:
    assert ask(tmp_path, hub, name) is None
    assert len(Hub.asked) == 1


@pytest.mark.parametrize("name", ["s3://bucket/model", "model"])
def test_the_hub_is_not_asked_for_other_places(hub: str, tmp_path: Path, name: str) -> None:
    (tmp_path / "model").mkdir()
    assert ask(tmp_path, hub, name) is None
    assert Hub.asked == []


@pytest.mark.parametrize("environment", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_without_the_hub_its_cache_must_do(tmp_path: Path, environment: dict[str, str]) -> None:
    nobody = "http://127.0.0.1:9"
    text = ask(tmp_path, nobody, "owner/model", **environment) or ""
    assert text.startswith("model owner/model: there is no such folder, and the hub's cache does not have it, nor does")
    assert "give a folder that holds the model's files" in text
    folder = tmp_path / "models--owner--model"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "params.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    assert ask(tmp_path, nobody, "owner/model", **environment) is None
