"""`agentcache replay` as a process of its own, on the real CPU engine."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from background_server import KEY, ONE_PROCESS, SharedServer
from loaded_once import run_command
from made_recordings import make_session, write_sessions

from agentcache.cli import main
from agentcache.report.events import EVENTS_FILE, JobEvent, PolicyEvent, RequestEvent, read_events
from agentcache.run.folder import ENGINE_LOG

pytestmark = pytest.mark.engine

POLICIES = ("lru", "vllm")
# Another start would take a minute of CPU: the run of the policies above ends by Ctrl-C in this one.
LAST = "agentcache"


@pytest.fixture(scope="module")
def one_engine_run(
    tmp_path_factory: pytest.TempPathFactory,
    forkserver: None,  # noqa: ARG001 (of its processes)
) -> Path:
    """Jobs one after the other, so that nothing depends on timing, in a cache that holds little more than one."""
    out = tmp_path_factory.mktemp("replay") / "out"
    policies = [word for policy in (*POLICIES, LAST) for word in ("--policy", policy)]
    options = [*policies, "--jobs", "4", "--scale", "0.05", "--tool-latency", "0.1"]
    pace = ["--arrival", "even", "--rate", "0.33", "--kv-tokens", "3500", "--seed", "3"]
    command = ["replay", "bfcl", "--model", "tiny", *options, *pace, "--out", str(out), "--", *ONE_PROCESS]
    printed = out.with_name("printed")
    with run_command(command, printed) as process:
        wait_for_a_job_under_way(out, process)
        assert process.pid is not None
        group = psutil.Process(process.pid).children(recursive=True)
        assert group
        # As a terminal does it: to the whole group, so the engine's own processes hear it too.
        os.killpg(process.pid, signal.SIGINT)
        process.join(90)
    output = printed.read_text()
    assert process.exitcode == 130, output + (out / ENGINE_LOG).read_text()[-3000:]
    assert "Job latency, mean" in output
    _, alive = psutil.wait_procs(group, timeout=15)
    assert alive == []
    return out


def wait_for_a_job_under_way(out: Path, process: BaseProcess) -> None:
    """Of the last policy, behind one that finished. Five minutes: a busy machine may take two for the start alone."""
    for _ in range(6000):
        assert process.is_alive(), "the replay ended by itself"
        if (out / EVENTS_FILE).exists():
            events = [event for event in read_events(out) if getattr(event, "policy", None) == LAST]
            begun = {event.job for event in events if isinstance(event, RequestEvent)}
            finished = {event.job for event in events if isinstance(event, JobEvent)}
            if finished and begun - finished:
                return
        time.sleep(0.05)
    raise AssertionError("no job finished")


def requests_of(folder: Path) -> dict[str, list[RequestEvent]]:
    found = defaultdict(list)
    for event in read_events(folder):
        if isinstance(event, RequestEvent):
            found[event.policy].append(event)
    return found


def test_replay_is_token_exact(one_engine_run: Path) -> None:
    jobs = [event for event in read_events(one_engine_run) if isinstance(event, JobEvent) and event.policy in POLICIES]
    assert [job.status for job in jobs] == ["finished"] * 8
    by_policy = requests_of(one_engine_run)
    sizes = {
        policy: sorted((r.job, r.turn, r.prompt_tokens, r.output_tokens) for r in requests)
        for policy, requests in by_policy.items()
    }
    assert sizes["vllm"] == sizes["lru"]
    assert all(request.diverged_at is None for requests in by_policy.values() for request in requests)
    assert max(request.turn for request in by_policy["lru"]) >= 3


def test_lru_hits_the_same_tokens_as_vllm(one_engine_run: Path) -> None:
    hits = {
        policy: sorted((r.job, r.turn, r.cached_tokens) for r in requests)
        for policy, requests in requests_of(one_engine_run).items()
    }
    assert hits["vllm"] == hits["lru"]
    # What the next job of the same length begins with is shared; where it had gone, the cache has evicted.
    assert sum(cached for *_, cached in hits["lru"]) > 0


def test_all_policies_run_on_one_engine_that_begins_anew(one_engine_run: Path) -> None:
    assert (one_engine_run / ENGINE_LOG).read_text().count("Initializing a V1 LLM engine") == 1
    ends = {event.policy: event for event in read_events(one_engine_run) if isinstance(event, PolicyEvent)}
    ends.pop(LAST, None)
    assert tuple(ends) == POLICIES
    assert (ends["lru"].engine_startup_s or 0) > 0.3
    # A switch is no start: a figure would suggest that this engine starts faster.
    assert ends["vllm"].engine_startup_s is None
    assert {end.model_runner for end in ends.values()} == {"V1"}
    # Stock vLLM counts none. Each policy counts its own: the jobs are many times as long as the cache.
    evicted = {policy: (end.evictions or {}).get("capacity") for policy, end in ends.items()}
    assert evicted.pop("vllm") is None
    assert all(0 < (blocks or 0) < 20 * 3500 // 32 for blocks in evicted.values())
    # The jobs are the same, so a policy that found anything of the one before would find nearly all of its prompts.
    firsts = [next(r for r in requests if r.turn == 0) for requests in requests_of(one_engine_run).values()]
    assert len({(first.job, first.prompt_tokens, first.cached_tokens) for first in firsts}) == 1
    assert (firsts[0].cached_tokens or 0) < 0.2 * firsts[0].prompt_tokens


def test_server_timings_and_report_are_there(one_engine_run: Path) -> None:
    for request in requests_of(one_engine_run)["lru"]:
        assert None not in (request.queue_s, request.prefill_s, request.decode_s, request.ttft_s)
    summary = json.loads((one_engine_run / "summary.json").read_text())
    for policy in POLICIES:
        figures = summary["policies"][policy]
        assert figures["jobs"] == 4
        assert figures["preemptions"] is not None
        assert 0 < figures["block_hit_rate"] < 1
    assert {path.name for path in one_engine_run.iterdir()} >= {"report.html", ENGINE_LOG}


@pytest.fixture
def base_url(shared_server: SharedServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a server with an empty cache, under lru."""
    shared_server.use("lru")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return f"{shared_server.url}/v1"


def test_sessions_without_text_are_replayed_token_by_token(base_url: str, tmp_path: Path) -> None:
    made = (make_session(number, (1, 2), (1, 2, 3, 4), (1, 2, 8), (1,)) for number in range(2))
    out = tmp_path / "out"
    workload = f"recording:{write_sessions(tmp_path / 'r.jsonl', made)}"
    assert main(["replay", workload, "--base-url", base_url, "--out", str(out)]) == 0
    requests = requests_of(out)["server"]
    assert sorted((request.job, request.turn) for request in requests) == [
        (f"{number}-trace_000{number}", turn) for number in range(2) for turn in range(4)
    ]
    assert [request.diverged_at for request in requests] == [None] * 8
    # Nothing is evicted: what the turn before left is found again, in blocks of 32, and so is what its reply began.
    for request in requests:
        assert request.reusable_tokens == {0: 0, 1: 128, 2: 128, 3: 64}[request.turn]
        assert request.cached_tokens == request.reusable_tokens
        assert (request.output_tokens, request.retries) == (20, 0)


def test_ctrl_c_keeps_finished_jobs_and_leaves_no_process(one_engine_run: Path) -> None:
    jobs = [event for event in read_events(one_engine_run) if isinstance(event, JobEvent) and event.policy == LAST]
    assert {job.status for job in jobs} == {"finished", "interrupted"}
    figures = json.loads((one_engine_run / "summary.json").read_text())["policies"][LAST]
    assert figures["job_latency_s"]["mean"] > 0
    (one_engine_run / "report.html").unlink()
    assert main(["report", str(one_engine_run)]) == 0
    assert (one_engine_run / "report.html").is_file()
