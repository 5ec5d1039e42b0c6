"""AIPerf, a benchmark that others use, against our server: `make test-aiperf` installs it and runs this."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from background_server import AUTHORIZED, KEY, SharedServer

from agentcache.front_end.client_sessions import SESSION_HEADER
from workloads.recording.reader import read_recording

VARIABLE = "AGENTCACHE_AIPERF"
AIPERF = os.environ.get(VARIABLE)
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(AIPERF is None, reason=f"{VARIABLE} names no executable of AIPerf: make test-aiperf"),
]

TOKENIZER = "agentcache/tiny"
CONVERSATIONS, TURNS = 3, 2
CONVERSE = (
    *("--num-conversations", str(CONVERSATIONS), "--concurrency", str(CONVERSATIONS)),
    *("--conversation-turn-mean", str(TURNS), "--conversation-turn-stddev", "0", "--conversation-turn-delay-mean", "0"),
    *("--request-count", str(CONVERSATIONS * TURNS)),
    *("--synthetic-input-tokens-mean", "200", "--output-tokens-mean", "8"),
)
TRACE_BLOCK = 64
SCENARIO = "inferencex-agentx-mvp"
# The scenario asks for a quarter of an hour, else for the override.
AGENTX = (
    *("--scenario", SCENARIO, "--unsafe-override", "--benchmark-duration", "6", "--concurrency", "2"),
    *("--cache-bust", "first_turn_prefix", "--extra-inputs", "ignore_eos:true", "--custom-dataset-type", "weka_trace"),
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, tiny_model_path: str) -> Path:
    """The tokenizer, as a cache of Hugging Face's hub: for a trace AIPerf takes no folder."""
    hub = tmp_path_factory.mktemp("hub")
    model = hub / f"models--{TOKENIZER.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0")
    shutil.copytree(tiny_model_path, model / "snapshots" / "0", ignore=shutil.ignore_patterns("*.safetensors"))
    return hub


def run_aiperf(server: SharedServer, hub: Path, folder: Path, *options: str) -> tuple[list[dict[str, Any]], Any]:
    """The lines of the requests that it sent, none of which failed, and its summary."""
    common = (
        *("--model", "tiny", "--tokenizer", TOKENIZER, "--url", server.url, "--api-key", KEY),
        *("--endpoint-type", "chat", "--streaming", "--ui", "none", "--session-header", SESSION_HEADER),
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"}
    folder.mkdir()
    done = subprocess.run(
        [str(AIPERF), "profile", *common, *options],
        env=environment,
        cwd=folder,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    (lines,) = folder.rglob("profile_export.jsonl")
    (summary,) = folder.rglob("profile_export_aiperf.json")
    requests = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [request["error"] for request in requests if request.get("error")] == []
    return requests, json.loads(summary.read_text())


def sessions_of(requests: list[dict[str, Any]]) -> Counter[str]:
    return Counter(request["metadata"]["x_correlation_id"] for request in requests)


def find_jobs(server: SharedServer) -> Counter[str]:
    """How many requests of each session have ended. Those cut off, as most are without `ignore_eos`, are no turns."""
    jobs = httpx.get(f"{server.url}/agentcache/jobs", headers=AUTHORIZED).raise_for_status().json()["jobs"]
    return Counter({job["session"]: job["turn_count"] + job["failure_count"] for job in jobs})


def test_conversations_are_sessions_and_replayed(shared_server: SharedServer, hub: Path, tmp_path: Path) -> None:
    recorded = tmp_path / "traffic.jsonl"
    shared_server.use("agentcache", record={"file": str(recorded)})
    requests, summary = run_aiperf(shared_server, hub, tmp_path / "conversations", *CONVERSE)
    assert summary["request_count"]["avg"] == len(requests) == CONVERSATIONS * TURNS
    assert find_jobs(shared_server) == sessions_of(requests)
    assert set(sessions_of(requests).values()) == {TURNS}

    shared_server.use("agentcache")
    recording = read_recording(recorded)
    turns = Counter(line.session for line in recording.requests)
    assert sorted(turns.values()) == [TURNS] * CONVERSATIONS
    assert sum(line.cached_length > 0 for line in recording.requests) >= CONVERSATIONS
    trace = ("--input-file", str(recorded), "--custom-dataset-type", "mooncake_trace", "--fixed-schedule")
    replayed, _ = run_aiperf(shared_server, hub, tmp_path / "replay", *trace)
    assert len(replayed) == len(recording.requests)


def test_agentx_finds_its_sessions_followed(shared_server: SharedServer, hub: Path, tmp_path: Path) -> None:
    shared_server.use("agentcache")
    traces = tmp_path / "traces"
    traces.mkdir()
    for number in range(3):
        (traces / f"trace_{number}.json").write_text(json.dumps(make_trace(f"made{number}")))
    requests, summary = run_aiperf(shared_server, hub, tmp_path / "agentx", *AGENTX, "--input-file", str(traces))
    assert summary["metadata"]["scenario"] == SCENARIO
    sent = sessions_of(requests)
    assert len(sent) > 1
    assert max(sent.values()) > 1
    # Those that the end of the run cut off are in no line.
    assert sent <= find_jobs(shared_server)


def make_trace(name: str) -> dict[str, Any]:
    """Four turns, of which each repeats the one before."""
    requests = [
        {
            **{"t": 0.7 * turn, "type": "n", "model": "tiny", "stop": "tool_use", "api_time": 0.2, "think_time": 0.5},
            **{"in": TRACE_BLOCK * blocks + 10, "out": 6, "hash_ids": list(range(blocks))},
        }
        for turn, blocks in enumerate((3, 5, 7, 9))
    ]
    head = {"block_size": TRACE_BLOCK, "hash_id_scope": "local", "tool_tokens": 0, "system_tokens": TRACE_BLOCK}
    return {"id": name, "models": ["tiny"], **head, "requests": requests}
