"""What the scheduler counts in the engine's process, seen over HTTP on a live server."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from background_server import AUTHORIZED, BLOCK, BLOCKS, KEY, SharedServer
from forgetful_scheduler import FORGET

import agentcache
from agentcache.server import snapshot_reader

pytestmark = pytest.mark.engine

FORGOTTEN = 3
SESSION = "session-of-somebody"
DOCUMENTED = Path(agentcache.__file__).parents[1] / "docs" / "metrics-reference.md"


@pytest.fixture(scope="module")
def url(shared_server: SharedServer) -> Iterator[str]:
    """A server that has filled gaps and evicted blocks."""
    with pytest.MonkeyPatch.context() as patch:
        # Every read is a fresh one.
        patch.setattr(snapshot_reader, "MIN_INTERVAL_S", 0.0)
        shared_server.use("asymcache", tuning={"row_s": 0.0})
        for seed in (1, 1, 2, 3, 4, 5, 6, 7, 8):
            complete(shared_server, random.Random(seed).choices(range(8000), k=20 * BLOCK + 7))
        yield shared_server.url


def complete(server: SharedServer, prompt: list[int]) -> None:
    extra = {"ignore_eos": True, "session_id": SESSION, "vllm_xargs": {FORGET: FORGOTTEN}}
    server.client.completions.create(model="tiny", prompt=prompt, max_tokens=2, extra_body=extra)


def get_state(url: str) -> Any:
    return httpx.get(f"{url}/agentcache/state", headers=AUTHORIZED).raise_for_status().json()


def get_metrics(url: str) -> str:
    """Like vLLM's own metrics they need no key."""
    return httpx.get(f"{url}/metrics").raise_for_status().text


def find_values(metrics: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in metrics.splitlines() if line.startswith("agentcache:")]
    return {name: float(value) for name, _, value in lines}


def test_state_tells_what_the_engine_did(url: str) -> None:
    (engine,) = get_state(url)["engines"]
    assert (engine["engine"], engine["policy"]) == (0, "asymcache")
    knobs = engine["knobs"]
    assert (knobs["segments"]["enabled"], knobs["tuning"]["row_s"]) == (True, 0.0)
    assert engine["segments"]["requests"] == {"2": 1}
    assert engine["segments"]["fill_tokens"] == FORGOTTEN * BLOCK
    assert engine["evictions"]["capacity"]["blocks"] > 0
    assert engine["evictions"]["capacity"]["age_s"] > 0
    assert engine["blocks"] == {"total": BLOCKS, "used": 0, "free": BLOCKS, "tokens_per_block": BLOCK}
    assert engine["requests"] == {"running": 0, "waiting": 0}


def test_metrics_show_the_same_beside_vllms_own(url: str) -> None:
    metrics = get_metrics(url)
    values, (engine,) = find_values(metrics), get_state(url)["engines"]
    setup = 'chunking="on",engine="0",obstacle="none",policy="asymcache",segments="on",tier_obstacle="none"'
    assert values[f"agentcache:policy_info{{{setup}}}"] == 1
    assert values['agentcache:request_segments_count{engine="0"}'] == 1
    assert values['agentcache:fill_tokens_total{engine="0"}'] == engine["segments"]["fill_tokens"]
    assert values['agentcache:prefill_budget_tokens{engine="0"}'] == engine["prefill_budget"] > 0
    for cause, lost in engine["evictions"].items():
        labels = f'{{cause="{cause}",engine="0"}}'
        assert values[f"agentcache:evicted_blocks_total{labels}"] == lost["blocks"]
        assert values[f"agentcache:evicted_block_age_seconds_total{labels}"] == pytest.approx(lost["age_s"])
    assert re.search(r"^vllm:request_success_total\{.*\} \d", metrics, re.MULTILINE)


def test_another_request_shows_in_the_next_scrape(url: str, shared_server: SharedServer) -> None:
    before = find_values(get_metrics(url))
    for _ in range(2):
        complete(shared_server, list(range(500, 1100)))
    after = find_values(get_metrics(url))
    name = 'agentcache:fill_tokens_total{engine="0"}'
    assert after[name] == before[name] + FORGOTTEN * BLOCK


def test_the_bare_address_says_where_things_are(url: str) -> None:
    places = httpx.get(f"{url}/agentcache", headers=AUTHORIZED).raise_for_status().json()
    paths = [path.replace("SESSION", SESSION) for path in places.values() if path.startswith("/")]
    assert len(paths) == 5
    for path in paths:
        httpx.get(f"{url}{path}", headers=AUTHORIZED).raise_for_status()


@pytest.mark.parametrize(
    "path", ["/agentcache", "/agentcache/state", f"/agentcache/jobs/{SESSION}", "/agentcache/report", "/v1/models"]
)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}])
def test_state_is_guarded_as_v1_is(url: str, path: str, headers: dict[str, str]) -> None:
    answer = httpx.get(f"{url}{path}", headers=headers)
    assert (answer.status_code, answer.json()) == (httpx.codes.UNAUTHORIZED, {"error": "Unauthorized"})


def test_served_metrics_are_the_documented_ones(url: str) -> None:
    served = {
        (match[1], match[2])
        for match in re.finditer(r"^# TYPE (agentcache:\w+) (\w+)$", get_metrics(url), re.MULTILINE)
    }
    rows = re.findall(r"^\| `(agentcache:\w+)` \| (\w+) \|", DOCUMENTED.read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows)), "each once"
    # In the text format an info is a gauge of 1.
    assert served == {(name, "gauge" if kind == "info" else kind) for name, kind in rows}


def test_labels_name_neither_session_nor_prompt(url: str) -> None:
    ours = "\n".join(line for line in get_metrics(url).splitlines() if line.startswith("agentcache:"))
    of_setup = {"policy", "segments", "chunking", "obstacle", "tier_obstacle"}
    of_counts = {"engine", "cause", "reason", "tool", "how", "le", "place", "observer"}
    assert set(re.findall(r"(\w+)=\"", ours)) <= of_setup | of_counts
    assert SESSION not in ours


def test_a_server_inside_a_process_names_no_address(shared_server: SharedServer) -> None:
    shared_server.use("agentcache")
    banners = [line for line in shared_server.log.read_text().splitlines() if "agentcache: policy agentcache; " in line]
    assert banners
    assert not [line for line in banners if "Live report" in line]
