from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_server import MODEL, FakeServer, job_of
from made_recordings import make_requests, make_session, write_sessions
from made_settings import make_sessions, make_settings
from recorded_lines import make_line, write_recording
from shown_page import read_page

from agentcache.errors import InputError, ServerError
from agentcache.replay.command import replay, replay_all
from agentcache.replay.endpoint import CacheFacts, Endpoint
from agentcache.replay.settings import list_seeds
from agentcache.report.content import HTML_FILE, SUMMARY_FILE
from agentcache.report.events import EVENTS_FILE, RUN_FILE, PolicyEvent, read_events, read_run_record
from agentcache.report.policy_run import PolicyRun, group_by_policy
from agentcache.report.summary import PolicySummary
from agentcache.run.folder import ENGINE_LOG

pytestmark = pytest.mark.usefixtures("without_plots")

FILES = {RUN_FILE, EVENTS_FILE, SUMMARY_FILE, HTML_FILE, ENGINE_LOG}
METRICS = """\
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0"} 5.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10001"} 1.0
"""


def run(server: FakeServer, out: Path, **changes: Any) -> tuple[int, PolicySummary]:
    """The exit status and the figures of the run, whose files all exist."""
    status, summary = replay(make_settings(out, base_url=server.url, **changes))
    assert {path.name for path in out.iterdir()} >= FILES
    assert list(summary.policies) == ["server"]
    return status, summary.policies["server"]


def read(out: Path) -> PolicyRun:
    return group_by_policy(read_events(out))["server"]


def refusal(server: FakeServer, out: Path, **changes: Any) -> str:
    """The one line that refuses the settings, with nothing run and nothing left behind."""
    before = sorted(out.parent.rglob("*"))
    with pytest.raises(InputError) as caught:
        replay(make_settings(out, base_url=server.url, **changes))
    assert sorted(out.parent.rglob("*")) == before
    assert not [body for body in server.bodies if "session_id" in body]
    text = str(caught.value)
    assert text.count("\n") == 0
    return text


def test_a_replay_against_a_server_from_end_to_end(
    server: FakeServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server.metrics = METRICS
    out = tmp_path / "out"
    status, figures = run(server, out)
    assert status == 0
    assert (figures.jobs, figures.finished, figures.diverged_prompts) == (3, 3, 0)
    events = read(out)
    assert figures.turns == len(events.requests) > 3
    # The fake server's cache never evicts.
    assert figures.recomputed_tokens == 0
    assert sum(request.reusable_tokens for request in events.requests) > 0
    assert events.end == PolicyEvent(policy="server", block_size=16, cache_tokens=160_000, preemptions=0)
    record = read_run_record(out)
    assert (record.workload, record.model, record.jobs, record.seed) == ("bfcl", MODEL, 3, 0)
    assert (record.cache_tokens, record.device) == (160_000, f"the server at {server.url}")
    assert {"agentcache", "python", "openai"} <= record.versions.keys()
    assert "server: 3/3 jobs" in capfd.readouterr().out


def test_runs_against_one_server_share_no_session(server: FakeServer, tmp_path: Path) -> None:
    seen = []
    for number in range(2):
        run(server, tmp_path / f"run-{number}")
        seen.append({body["session_id"] for body in server.bodies if "session_id" in body})
        server.bodies.clear()
    assert [len(sessions) for sessions in seen] == [3, 3]
    assert not seen[0] & seen[1]


def test_recorded_sessions_are_replayed_as_they_were(server: FakeServer, tmp_path: Path) -> None:
    workload = make_sessions(tmp_path / "r.jsonl", 0, 1, 2)
    status, figures = run(server, tmp_path / "out", workload=workload, jobs=2)
    assert (status, figures.jobs, figures.turns) == (0, 2, 4)
    assert sorted(job.job for job in read(tmp_path / "out").jobs) == ["0-search_0", "1-search_1"]
    assert read_run_record(tmp_path / "out").workload == workload


def test_a_failing_job_gives_status_1_and_still_a_report(server: FakeServer, tmp_path: Path) -> None:
    server.refused_jobs.add("1-search_1")
    status, figures = run(server, tmp_path / "out", workload=make_sessions(tmp_path / "r.jsonl", 0, 1, 2))
    assert (status, figures.finished, figures.failed) == (1, 2, 1)
    assert "the engine is on fire" in read_page(tmp_path / "out" / HTML_FILE)


def test_an_interrupted_run_keeps_what_came_before(
    server: FakeServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def interrupt_when_a_job_is_done() -> None:
        while '"type":"job"' not in (out / EVENTS_FILE).read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def stall(body: Mapping[str, Any]) -> None:
        if job_of(body) == "1-search_1" and len(body["prompt"]) > 25:
            server.stalled_jobs.add("1-search_1")
            threading.Thread(target=interrupt_when_a_job_is_done).start()

    server.on_request = stall
    server.stalled_jobs.add("2-search_2")
    before = signal.getsignal(signal.SIGINT)
    status, figures = run(server, out, workload=make_sessions(tmp_path / "r.jsonl", 0, 1, 2))
    assert status == 130
    assert (figures.jobs, figures.finished, figures.interrupted) == (2, 1, 1)
    assert read(out).end is None
    assert "interrupted: the jobs that finished are in the report" in capfd.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before


def test_a_server_that_goes_away_ends_the_run_with_a_report(
    server: FakeServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Endpoint] = []

    def lose_server(endpoint: Endpoint) -> CacheFacts:
        # Asked before the preparation, before the run and after it.
        asked.append(endpoint)
        if len(asked) == 3:
            raise ServerError("the server is gone")
        return CacheFacts(16, None, None)

    monkeypatch.setattr(Endpoint, "read_cache_facts", lose_server)
    status, figures = run(server, tmp_path / "out", jobs=1)
    assert (status, figures.finished) == (1, 1)
    assert "the server is gone; see" in capfd.readouterr().out


def test_a_server_that_hides_cached_tokens_has_no_hit_rate(server: FakeServer, tmp_path: Path) -> None:
    # vLLM tells them only when started with --enable-prompt-tokens-details.
    server.tells_cached = False
    _, figures = run(server, tmp_path / "out", jobs=1)
    assert (figures.token_hit_rate, figures.recomputed_tokens) == (None, None)


def test_a_run_in_the_way_is_replaced_whole(server: FakeServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(server, out, workload=make_sessions(tmp_path / "three.jsonl", 0, 1, 2))
    (out / ENGINE_LOG).write_text("of the old run\n")
    _, figures = run(server, out, workload=make_sessions(tmp_path / "one.jsonl", 7), overwrite=True)
    assert figures.jobs == 1
    assert {event.job for event in read(out).requests} == {"0-search_7"}
    assert read_run_record(out).jobs == 1
    assert "of the old run" not in (out / ENGINE_LOG).read_text()


def test_a_run_is_kept_when_its_replacement_cannot_begin(server: FakeServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in FILES:
        (out / name).write_text("of the old run\n")
    (tmp_path / "r.jsonl").write_text("{\n")
    refusal(server, out, overwrite=True, workload=f"recording:{tmp_path / 'r.jsonl'}")
    assert {path.name: path.read_text() for path in out.iterdir()} == dict.fromkeys(FILES, "of the old run\n")


def test_a_job_that_exceeds_the_servers_context_is_refused(server: FakeServer, tmp_path: Path) -> None:
    server.models = {"data": [{"id": MODEL, "max_model_len": 500}]}
    assert refusal(server, tmp_path / "out").startswith("--scale: job web_search_")


def test_a_job_that_exceeds_the_servers_cache_is_refused(server: FakeServer, tmp_path: Path) -> None:
    server.metrics = METRICS.replace("10001", "11")
    assert "the cache holds 160" in refusal(server, tmp_path / "out")


def test_a_server_that_ignores_replies_is_refused(server: FakeServer, tmp_path: Path) -> None:
    server.follows_replies = False
    assert "start it with `agentcache serve MODEL --forced-replies`" in refusal(server, tmp_path / "out")


def test_folders_made_on_the_way_are_taken_back(server: FakeServer, tmp_path: Path) -> None:
    server.follows_replies = False
    with pytest.raises(InputError):
        replay(make_settings(tmp_path / "runs" / "new" / "out", base_url=server.url))
    assert list(tmp_path.iterdir()) == []


def test_sessions_without_text_are_replayed(server: FakeServer, tmp_path: Path) -> None:
    server.metrics = METRICS
    made = (make_session(number, (1, 2), (1, 2, 3, 4), (1, 2, 8)) for number in range(2))
    workload = f"recording:{write_sessions(tmp_path / 'r.jsonl', made)}"
    status, figures = run(server, tmp_path / "out", workload=workload, max_gap_s=60.0)
    assert (status, figures.jobs, figures.finished, figures.turns, figures.diverged_prompts) == (0, 2, 2, 6, 0)
    assert figures.recomputed_tokens == 0
    record = read_run_record(tmp_path / "out")
    assert record.workload == workload
    assert (record.settings["max_context"], record.settings["max_gap_s"]) == (None, 60.0)
    assert any("The recording has no text" in note for note in record.notes)


def test_a_broken_recording_is_named_and_leaves_nothing(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("{")
    assert refusal(server, tmp_path / "out", workload=f"recording:{path}").startswith(f"{path}:1: ")


def test_broken_lines_of_a_recording_are_told(server: FakeServer, tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r.jsonl", make_line(0, 50, 5, list(range(5))))
    path.write_text(path.read_text() + "{\n")
    assert run(server, tmp_path / "out", workload=f"recording:{path}")[1].finished == 1
    (loss,) = read_run_record(tmp_path / "out").losses
    assert loss.startswith(f"Broken lines that were skipped: 1 ({path}:2: ")


def test_a_context_above_the_limit_names_the_flag_that_cuts_it(server: FakeServer, tmp_path: Path) -> None:
    path = make_requests(tmp_path / "trace.jsonl", (1, 2), tuple(range(120)))
    server.models = {"data": [{"id": MODEL, "max_model_len": 1100}]}
    text = refusal(server, tmp_path / "out", workload=f"recording:{path}")
    needs = f"recording:{path}: job 1-request-2 needs 1207 tokens, the model takes 1100"
    assert text == f"{needs}; give --max-context 1100 or less"
    assert run(server, tmp_path / "out", workload=f"recording:{path}", max_context=1100)[1].finished == 1


def test_seeds_run_one_after_another_into_folders_of_their_own(server: FakeServer, tmp_path: Path) -> None:
    runs = list_seeds(make_settings(tmp_path / "out", base_url=server.url), [7, 8])
    status, summaries = replay_all(runs)
    assert status == 0
    assert [summary.policies["server"].finished for summary in summaries] == [3, 3]
    assert {path.name for path in (tmp_path / "out" / "seed-7").iterdir()} >= FILES
    assert {path.name for path in (tmp_path / "out" / "seed-8").iterdir()} >= FILES - {ENGINE_LOG}
    assert [read_run_record(one.out).seed for one in runs] == [7, 8]


def test_each_seed_begins_with_another_policy(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, model="tiny", policies=("vllm", "lru", "agentcache"))
    orders = [one.policies for one in list_seeds(settings, [1, 2, 3, 4])]
    assert [order[0] for order in orders] == ["vllm", "lru", "agentcache", "vllm"]
    assert orders[1] == ("lru", "agentcache", "vllm")
    with pytest.raises(InputError, match=r"--seeds 1 1: name each once"):
        list_seeds(settings, [1, 1])
