from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from kept_objects import list_kept
from made_command import make_settings
from made_simulation import make_engine
from shown_page import read_page

from agentcache.engine.observe.misses import explain_misses, find_missed
from agentcache.engine.request_state import Overlap
from agentcache.errors import InputError
from agentcache.policy.replicas.engine_load import HostMemory
from agentcache.report.events import read_events
from agentcache.report.policy_run import group_by_policy
from agentcache.report.summary import PolicySummary
from agentcache.sim.command import simulate
from agentcache.sim.routing import ByCost, LeftBehind, make_routing

BLOCK = 16

pytestmark = pytest.mark.usefixtures("without_plots")


def read_homes(out: Path) -> dict[str, list[int]]:
    """The engine of each turn, by job, in the order in which turns ended."""
    found: dict[str, list[int]] = defaultdict(list)
    for request in group_by_policy(read_events(out))["agentcache"].requests:
        assert request.engine is not None
        found[request.job].append(request.engine)
    return found


def run(out: Path, **changes: Any) -> PolicySummary:
    given: dict[str, Any] = {"jobs": 12, "kv_tokens": 40_000, "replicas": 2, "policies": ("agentcache",), **changes}
    status, summary = simulate(make_settings(out, **given))
    assert status == 0
    (figures,) = summary.policies.values()
    assert figures.finished == given["jobs"]
    return figures


@pytest.mark.parametrize("routing", ["agentcache", "sticky"])
def test_jobs_stay_at_engines_that_share_the_work(routing: str, tmp_path: Path) -> None:
    figures = run(tmp_path, routing=routing)
    homes = read_homes(tmp_path)
    assert all(len(set(engines)) == 1 for engines in homes.values())
    assert {engines[0] for engines in homes.values()} == {0, 1}
    assert 1 <= (figures.busiest_over_mean or 0) < 2


def test_new_jobs_use_all_engines_alike(tmp_path: Path) -> None:
    """BFCL's jobs share most of their first prompt, and come sooner than any of them ends."""
    run(tmp_path, routing="agentcache", replicas=8, jobs=24, rate=1000.0)
    begun = Counter(engines[0] for engines in read_homes(tmp_path).values())
    assert sorted(begun.values()) == [3] * 8


def test_the_least_loaded_engine_is_anybodys(tmp_path: Path) -> None:
    spread = run(tmp_path / "spread", routing="least-loaded")
    assert any(len(set(engines)) == 2 for engines in read_homes(tmp_path / "spread").values())
    home = run(tmp_path / "home", routing="agentcache")
    assert (spread.token_hit_rate or 0) < (home.token_hit_rate or 0)


def test_what_another_engine_has_is_told_apart(tmp_path: Path) -> None:
    spread = run(tmp_path / "spread", routing="least-loaded", policies=("vllm",))
    assert 0 < (spread.elsewhere_tokens or 0) <= (spread.recomputed_tokens or 0)
    assert "at another engine" in read_page(tmp_path / "spread" / "report.html")
    home = run(tmp_path / "home", routing="sticky", policies=("vllm",))
    assert home.elsewhere_tokens == 0


def test_turns_miss_at_another_engine_what_a_server_says(tmp_path: Path) -> None:
    run(tmp_path, routing="least-loaded")
    requests = group_by_policy(read_events(tmp_path))["agentcache"].requests
    assert any(request.elsewhere_tokens for request in requests)
    for request in requests:
        cached, left = request.cached_tokens or 0, min(request.left_tokens or 0, request.reusable_tokens)
        missed = find_missed(request.prompt_tokens // BLOCK, cached // BLOCK, ())
        tokens = request.prompt_tokens - cached
        reasons = explain_misses(missed, tokens, {}, Overlap(0, None), BLOCK, left_tokens=left)
        assert request.elsewhere_tokens == reasons.get("at another engine", 0)


def test_a_moved_job_leaves_what_was_sent_and_fits(tiny_model_path: str) -> None:
    engines = [make_engine(tiny_model_path, cache_tokens=320) for _ in range(2)]
    left = LeftBehind(engines)
    prompt, reply = list(range(40)), list(range(100, 124))
    turns = [prompt, [*prompt, *reply], [*prompt, *reply, *range(200, 232)]]
    assert left.send("a/0", turns[0], "a", 0) == 0
    left.finished("a/0", reply)
    assert left.send("a/1", turns[1], "a", 0) == 0
    assert left.send("a/2", turns[2], "a", 1) == 64
    left.send("b/0", list(range(1000, 1320)), "b", 1)
    assert left.send("a/3", turns[2], "a", 0) == 0


def test_with_one_engine_the_routing_does_not_matter(tmp_path: Path) -> None:
    one, other = (run(tmp_path / routing, routing=routing, replicas=1) for routing in ("agentcache", "least-loaded"))
    assert one == other
    assert (one.busiest_over_mean, one.elsewhere_tokens) == (None, None)


def test_twice_the_engines_and_jobs_take_about_as_long(tmp_path: Path) -> None:
    one = run(tmp_path / "one", replicas=1, jobs=6, rate=5.0)
    two = run(tmp_path / "two", replicas=2, jobs=12, rate=10.0)
    assert two.job_latency_s.mean == pytest.approx(one.job_latency_s.mean, rel=0.25)


@pytest.mark.parametrize("host_tokens", [0, 3200])
def test_the_routing_knows_the_host_s_memory(host_tokens: int, tiny_model_path: str) -> None:
    knobs = {"tier": {"link_gb_s": 4.0}}
    engines = [make_engine(tiny_model_path, "agentcache", host_tokens=host_tokens, knobs=knobs) for _ in range(2)]
    routing = make_routing("agentcache", engines)
    assert isinstance(routing, ByCost)
    # 1,024 bytes a token, or half of that where the machine's vLLM keeps 16 bits.
    (host,) = list_kept(routing.placement, HostMemory)
    assert host.tokens == host_tokens
    assert host.load_s in ((512 / 4e9, 1024 / 4e9) if host_tokens else (0.0,))


def test_vllm_s_balancer_minds_a_full_cache(tiny_model_path: str) -> None:
    engines = [make_engine(tiny_model_path) for _ in range(2)]
    engines[0].add("one", list(range(320)), [1])
    assert [make_routing("least-loaded", engines).choose("two", [1], "job").engine for _ in range(2)] == [1, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": 0}, "--replicas 0: give at least 1"),
        ({"routing": "random"}, "--routing random: choose from agentcache, least-loaded, sticky"),
    ],
)
def test_what_cannot_be_simulated_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        make_settings(tmp_path, **{"replicas": 2, **changes}).check()
    assert str(caught.value).startswith(message)
