"""What a job took is told when it is over: by its address, to who ends it, on the live page and in the job log."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from background_server import AUTHORIZED, SharedServer
from openai.types.chat import ChatCompletion

from agentcache.server import live_report, snapshot_reader

pytestmark = pytest.mark.engine

SESSION = "customer-4711"
AGENT = "customer-4711/planner"


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read is a fresh one."""
    monkeypatch.setattr(snapshot_reader, "MIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(live_report, "MIN_INTERVAL_S", 0.0)


def converse(server: SharedServer, salt: str = "secret-salt") -> list[ChatCompletion]:
    """Two turns of one agent."""
    chat: list[Any] = [{"role": "user", "content": "What is tea? " * 40}]
    replies = []
    for _ in range(2):
        reply = server.client.chat.completions.create(
            model="tiny",
            messages=chat,
            max_tokens=5,
            extra_headers={"X-Session-ID": SESSION, "thread-id": AGENT},
            extra_body={"ignore_eos": True, "cache_salt": salt},
        )
        replies.append(reply)
        chat += [{"role": "assistant", "content": reply.choices[0].message.content}, {"role": "user", "content": "On."}]
    return replies


def ask(server: SharedServer, method: str, path: str, salt: str | None = None) -> httpx.Response:
    headers = AUTHORIZED if salt is None else AUTHORIZED | {"X-Cache-Salt": salt}
    return httpx.request(method, f"{server.url}/agentcache/{path}", headers=headers, timeout=30)


def check(record: dict[str, Any], replies: list[ChatCompletion]) -> None:
    """It says what the replies said, and what the clock says."""
    usages = [reply.usage for reply in replies]
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages]  # type: ignore[union-attr]
    assert record["prompt_tokens"] == sum(usage.prompt_tokens for usage in usages if usage)
    assert record["cached_tokens"] == sum(tokens or 0 for tokens in cached) > 0
    assert record["cached_by_place"] == {"gpu": record["cached_tokens"]}
    assert record["computed_tokens"] == record["prompt_tokens"] - record["cached_tokens"]
    assert (record["output_tokens"], record["requests"], record["turns"]) == (10, 2, 2)
    assert record["request_ids"] == [reply.id for reply in replies]
    assert 0 < record["ttft_mean_s"] <= record["ttft_max_s"] < record["latency_s"]
    assert record["gpu_s"] > 0
    started, finished, ended = (
        datetime.fromisoformat(record[f"{name}_at"]) for name in ("started", "finished", "ended")
    )
    assert abs((finished - started).total_seconds() - record["latency_s"]) < 0.01
    assert finished <= ended
    assert abs(started.timestamp() - replies[0].created) < 5


@pytest.mark.parametrize("policy", ["agentcache", "observe"])
def test_all_tell_the_same_of_a_job_that_is_over(shared_server: SharedServer, tmp_path: Path, policy: str) -> None:
    log = tmp_path / "jobs.jsonl"
    shared_server.use(policy, runtime={"job_log": str(log), "tool_parser": None})
    replies = converse(shared_server)
    path = f"jobs/{SESSION}"
    (ended,) = ask(shared_server, "DELETE", path).json()["ended"]
    check(ended, replies)
    for name in (path, f"jobs/{replies[1].id}"):
        found = ask(shared_server, "GET", name).json()
        assert found["jobs"] == []
        ((engine, record),) = [(job["engine"], job["summary"]) for job in found["ended"]]
        assert {"engine": engine, **record} == ended
        assert len(found["ended"][0]["turns"]) == 2
    page = ask(shared_server, "GET", "report?refresh=0").text
    assert "Jobs that are over" in page
    assert f'<a href="jobs/{SESSION}">' in page
    # The log has the job that goes on when the server stops as well.
    converse(shared_server, salt="other")
    shared_server.use("lru")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["cause"] for line in lines] == ["job over", "server stopped"]
    names = ("job", "threads")
    assert {name: value for name, value in lines[0].items() if name not in names} == {
        name: value for name, value in ended.items() if name not in names
    }
    assert ended["threads"] == [AGENT]
    assert lines[0]["threads"] == lines[1]["threads"]
    assert lines[0]["job"] != lines[1]["job"]
    assert not [word for word in ("customer", "planner", "salt", "tea") if word in log.read_text()]


def test_a_tenant_sees_records_of_its_own_jobs_alone(shared_server: SharedServer) -> None:
    shared_server.use("agentcache")
    converse(shared_server, salt="mine")
    path = f"jobs/{SESSION}"
    assert ask(shared_server, "DELETE", path, "yours").status_code == httpx.codes.NOT_FOUND
    assert len(ask(shared_server, "DELETE", path, "mine").json()["ended"]) == 1
    assert len(ask(shared_server, "GET", path, "mine").json()["ended"]) == 1
    assert ask(shared_server, "GET", path, "yours").status_code == httpx.codes.NOT_FOUND
    assert ask(shared_server, "GET", path, "").status_code == httpx.codes.NOT_FOUND


def test_a_full_disk_stops_no_request_and_is_counted(shared_server: SharedServer) -> None:
    shared_server.use("agentcache", runtime={"job_log": "named:/dev/full"})
    for _ in range(2):
        assert len(converse(shared_server)) == 2
        assert ask(shared_server, "DELETE", f"jobs/{SESSION}").json()["released"]
    # It is written in a thread.
    for _ in range(1000):
        if (lost := shared_server.read_state()["runtime"]["log_lost"]) == 2:
            break
    metrics = httpx.get(f"{shared_server.url}/metrics", timeout=30).text
    assert f'agentcache:job_log_lost_total{{engine="0"}} {float(lost)}' in metrics
    assert lost == 2
