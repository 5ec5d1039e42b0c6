"""Where a prompt left its job's last turn, as text: on a real server, where the knob says so, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from background_server import AUTHORIZED, KEY, SharedServer

from agentcache.cli import main
from agentcache.engine.constants import REPLY_ARGUMENT
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.server import live_report, snapshot_reader
from tool_runtime.agent.job import Turn

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("without_plots")]

PAGES = ("/agentcache/jobs/dated", "/agentcache/jobs", "/agentcache/report?refresh=0")
# No other test sends it.
MARK = "Quixotry"


def say_date(day: str) -> str:
    return f"You are brief and kind. {'Answer in few words. ' * 6}Today is {MARK} {day}, {'a fine day. ' * 6}"


def ask_on_two_days(server: SharedServer, encoder: ReplyEncoder) -> None:
    question, reply = {"role": "user", "content": "What now?"}, Turn("Wait. " * 20)
    body = {"vllm_xargs": {REPLY_ARGUMENT: encoder.encode(reply)}, "session_id": "dated"}
    goes_on = [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "And then?"}]
    for day, rest in (("Monday", []), ("Tuesday", goes_on)):
        chat: list[Any] = [{"role": "system", "content": say_date(day)}, question, *rest]
        server.client.chat.completions.create(model="tiny", messages=chat, extra_body=body)


@pytest.fixture(autouse=True)
def _fresh_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((snapshot_reader, "MIN_INTERVAL_S"), (live_report, "MIN_INTERVAL_S"), (live_report, "REST")):
        monkeypatch.setattr(module, name, 0.0)


@pytest.fixture(params=[True, False], ids=["shown", "hidden"])
def shows(
    request: pytest.FixtureRequest,
    shared_server: SharedServer,
    tiny_model_path: str,
    tmp_path: Path,
    vllm_log: pytest.LogCaptureFixture,
) -> Iterator[bool]:
    """Whether text is shown. It is in no log and no recording in any case."""
    recording = tmp_path / "traffic.jsonl"
    knobs = {"tool_parser": "hermes", "show_text": request.param}
    shared_server.use("agentcache", runtime=knobs, record={"file": str(recording)})
    ask_on_two_days(shared_server, ReplyEncoder(LocalTokenizer(tiny_model_path)))
    yield bool(request.param)
    # The recording is complete when its scheduler is gone.
    shared_server.use("lru")
    assert len(recording.read_text().splitlines()) == 2, "two requests"
    said = [record.getMessage() for when in ("setup", "call") for record in vllm_log.get_records(when)]
    assert any("Received request" in line for line in said)
    for text in (recording.read_text(), shared_server.log.read_text(errors="replace"), *said):
        assert MARK not in text


def get(server: SharedServer, path: str) -> str:
    return httpx.get(f"{server.url}{path}", headers=AUTHORIZED, timeout=30).raise_for_status().text


def test_text_is_shown_where_the_knob_says_so(
    shared_server: SharedServer, shows: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (job,) = json.loads(get(shared_server, PAGES[0]))["jobs"]
    change = job["turns"][-1]["change"]
    assert (change["cause"], change["role"]) == ("system message changed", "system")
    assert main(["doctor", shared_server.url, "--api-key", KEY]) == 0
    doctor = capsys.readouterr().out
    assert "system message changed" in doctor
    pages = [get(shared_server, path) for path in PAGES]
    if not shows:
        assert change["text"] is None
        assert [page for page in (*pages, doctor) if MARK in page or "Tuesday" in page] == []
        return
    text = change["text"]
    assert change["at_token"] <= text["at_token"]
    assert text["before"] + text["was"] in say_date("Monday")
    assert text["before"] + text["now"] in say_date("Tuesday")
    assert text["was"] != text["now"]
    assert all(text["now"] in page for page in pages), "where it is now"
    for day in ("was", "now"):
        assert f"   {day}: …{text['before']}{text[day]}…\n" in doctor
    assert MARK not in get(shared_server, "/metrics")
    assert MARK not in get(shared_server, "/agentcache/state")


@pytest.mark.parametrize("path", PAGES)
def test_text_needs_the_api_key(shared_server: SharedServer, path: str) -> None:
    answer = httpx.get(f"{shared_server.url}{path}", timeout=30)
    assert answer.status_code == httpx.codes.UNAUTHORIZED
    assert MARK not in answer.text
