"""Two API servers in front of two engines: vLLM's own default with --data-parallel-size 2."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from background_server import ONE_PROCESS, OPTIONS
from loaded_once import run_command

from workloads.recording.line import name_file
from workloads.recording.reader import read_recording
from workloads.recording.sessions import build_jobs

# On a busy machine it takes minutes.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.usefixtures("forkserver")]

SESSIONS = [f"session {number}" for number in range(6)]
TURNS = 3
# So many that late replies are not over when the last of them begins, on a busy machine as well.
LATE_TOKENS = 2000


@contextmanager
def serve(log: Path, port: int, *options: str) -> Iterator[tuple[str, BaseProcess]]:
    command = ["serve", "tiny", "--port", str(port), "--data-parallel-size", "2", *OPTIONS, *ONE_PROCESS, *options]
    # Whatever its value: without it each engine of vLLM 0.33 wants a memory node of its own.
    environment = {"VLLM_CPU_SIM_MULTI_NUMA": "0", "PROMETHEUS_MULTIPROC_DIR": str(log.parent / "metrics")}
    Path(environment["PROMETHEUS_MULTIPROC_DIR"]).mkdir()
    with run_command(command, log, environment) as process:
        url = f"http://127.0.0.1:{port}"
        while not is_up(url):
            assert process.is_alive(), log.read_text(errors="replace")
            time.sleep(0.5)
        yield url, process


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def ask(url: str, session: str, turn: int) -> int:
    """Each request has a connection of its own, so either server may get it."""
    answer = httpx.post(f"{url}/v1/chat/completions", **make_request(session, turn, tokens=8))
    return int(answer.raise_for_status().json()["usage"]["completion_tokens"])


def make_request(session: str, turn: int, tokens: int, **options: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": "Be brief. " * 40},
        {"role": "user", "content": f"{session} says something. " * 10 * (turn + 1)},
    ]
    body = {"model": "tiny", "messages": messages, "max_tokens": tokens, "ignore_eos": True, **options}
    return {"json": body, "headers": {"X-Session-ID": session}, "timeout": 120}


def ask_late(url: str, session: str, began: Event) -> int:
    """Tell when the reply begins, and wait for its end."""
    request = make_request(session, 0, LATE_TOKENS, stream=True, stream_options={"include_usage": True})
    with httpx.stream("POST", f"{url}/v1/chat/completions", **request) as answer:
        chunks = []
        for line in answer.raise_for_status().iter_lines():
            began.set()
            if line.startswith("data: {"):
                chunks.append(json.loads(line.removeprefix("data: ")))
    return int(chunks[-1]["usage"]["completion_tokens"])


def read_job(url: str, session: str) -> httpx.Response:
    """Ask again where the engines take longer than a server waits for them, as on a busy machine."""
    end_s = time.monotonic() + 60
    address = f"{url}/agentcache/jobs/{session}"
    while (answer := httpx.get(address, timeout=30)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
        assert time.monotonic() < end_s
    return answer


def test_jobs_stay_home_and_replies_end(tmp_path: Path, port: int) -> None:
    log, recorded = tmp_path / "server.log", tmp_path / "traffic.jsonl"
    jobs = tmp_path / "jobs.jsonl"
    record = ("--record", str(recorded), "--agentcache", "tuning.record_block_tokens=64")
    record += ("--job-log", str(jobs))
    # The default gives late replies 10 s, which a busy machine exceeds.
    with serve(log, port, *record, "--shutdown-timeout", "120") as (url, process):
        for turn in range(TURNS):
            for session in SESSIONS:
                ask(url, session, turn)
        homes = {}
        for session in SESSIONS:
            # Asked twice: both servers know.
            views = [read_job(url, session).raise_for_status().json() for _ in range(2)]
            assert [[(job["engine"], len(job["turns"])) for job in view["jobs"]] for view in views] == [
                [(views[0]["home"]["engine"], TURNS)]
            ] * 2
            homes[session] = views[0]["home"]["engine"]
        assert sorted(homes.values()) == [0, 0, 0, 1, 1, 1]
        (ended,) = httpx.delete(f"{url}/agentcache/jobs/{SESSIONS[0]}", timeout=30).json()["ended"]
        assert (ended["engine"], ended["turns"]) == (homes[SESSIONS[0]], TURNS)
        over = read_job(url, SESSIONS[0]).raise_for_status().json()
        assert (over["jobs"], [job["summary"]["turns"] for job in over["ended"]]) == ([], [TURNS])
        with ThreadPoolExecutor(4) as pool:
            began = [Event() for _ in range(4)]
            replies = [pool.submit(ask_late, url, f"late {number}", each) for number, each in enumerate(began)]
            assert all(each.wait(60) for each in began)
            assert not all(reply.done() for reply in replies), "some run while the servers are told to end"
            process.terminate()
            assert [reply.result() for reply in replies] == [LATE_TOKENS] * 4
        process.join(120)
        assert process.exitcode == 0
    text = log.read_text(errors="replace")
    assert "ApiServer_1" in text
    assert "balancer chooses" not in text
    (banner,) = [line for line in text.splitlines() if "agentcache: policy " in line]
    assert banner.endswith(f" Live report: {url}/agentcache/report")
    assert text.count(f"{url}/agentcache/report") == 1
    check_recording(recorded)
    check_job_log(jobs)


def check_job_log(path: Path) -> None:
    """One line a job: of the one that was deleted, and of those that the servers' end found."""
    parts = [[json.loads(line) for line in each.read_text().splitlines()] for each in (path, name_file(path, 1))]
    assert [{line["engine"] for line in part} for part in parts] == [{0}, {1}]
    lines = [line for part in parts for line in part]
    assert len({line["job"] for line in lines}) == len(lines) == len(SESSIONS) + 4
    assert sorted(line["cause"] for line in lines) == ["job over"] + ["server stopped"] * (len(lines) - 1)


def check_recording(path: Path) -> None:
    """Both engines have written, and name alike what is alike: the beginning of every prompt."""
    parts = [[json.loads(line) for line in each.read_text().splitlines()] for each in (path, name_file(path, 1))]
    assert len({part[0]["recording"]["id"] for part in parts}) == 1
    beginnings = [{line["hash_ids"][0] for line in part} for part in parts]
    assert beginnings[0] == beginnings[1]
    recording = read_recording(path)
    assert len(recording.requests) == sum(map(len, parts)) == len(SESSIONS) * TURNS + 4
    jobs = build_jobs(recording, recording.requests).jobs
    assert sorted(len(job.turns) for job in jobs) == [1] * 4 + [TURNS] * len(SESSIONS)
