"""Several engines that share a recording."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from made_command import make_settings
from made_plan import make_plan, plan_settings

from agentcache.sim.command import simulate


def test_engines_that_share_the_traffic_have_rows_of_their_own(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_plan(plan_settings(recording, tmp_path, kv_tokens=(7_000,), replicas=(1, 3)))
    assert [(each.cell.policy, each.cell.engines, each.jobs) for each in made.outcomes] == [
        ("vllm", 1, 12),
        ("agentcache", 1, 12),
        ("vllm", 3, 12),
        ("agentcache", 3, 12),
    ]
    alone, _, shared, at_home = [each.mean_s or 0.0 for each in made.outcomes]
    assert at_home < shared < alone
    assert made.facts["routing"] == "vllm: least-loaded; agentcache: agentcache"
    page = (tmp_path / "plan.html").read_text()
    assert re.findall(r"Cache of [\w, ]+engines", page) == ["Cache of 6,992 tokens, in each of 3 engines"]
    assert [page.count(f'<svg id="{name}"') for name in ("mean-cache", "mean-engines", "hits-engines")] == [1, 1, 1]
    assert "in one cache as large as all of the row's" in html.unescape(page)
    assert "engines" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("policy", "given", "routing"),
    [("vllm", None, "least-loaded"), ("agentcache", "sticky", "sticky")],
)
def test_engines_share_as_simulate_has_them(
    recording: Path, tmp_path: Path, policy: str, given: str | None, routing: str
) -> None:
    """The oracle is the simulation of the same recording. Without --routing, it is the policy's own."""
    made = make_plan(
        plan_settings(recording, tmp_path, policies=(policy,), kv_tokens=(7_000,), replicas=(2,), routing=given)
    )
    jobs = {"workload": f"recording:{recording}", "max_context": 6_992}
    engines = {"policies": (policy,), "kv_tokens": 6_992, "replicas": 2, "routing": routing}
    settings = make_settings(tmp_path / "run", **jobs, **engines)
    _, summary = simulate(settings)
    assert made.outcomes[0].hit_rate == pytest.approx(summary.policies[policy].token_hit_rate)


def test_rows_of_a_search_stand_by_engines(recording: Path, tmp_path: Path) -> None:
    """Both policies are too slow with any number."""
    own = {"policies": ("lru", "vllm"), "kv_tokens": (7_000,), "cpu_tokens": (0,)}
    made = make_plan(plan_settings(recording, tmp_path, target_s=1e-3, max_gpus=2, **own))
    assert [(each.cell.engines, each.cell.policy) for each in made.outcomes] == [
        (engines, policy) for engines in (1, 2) for policy in ("lru", "vllm")
    ]
    assert made.fewest == {"lru": None, "vllm": None}
