from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clairvoyant import NAME, add_policy
from made_command import make_sessions, make_settings

from agentcache.errors import InputError
from agentcache.policy import registry
from agentcache.report.events import EVENTS_FILE
from agentcache.sim import command


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Simulation", command.Simulation)
    monkeypatch.setattr(registry, "POLICIES", registry.POLICIES)
    monkeypatch.setitem(registry.POLICIES, NAME, registry.POLICIES["lru"])
    add_policy()


def test_who_knows_the_future_computes_least_and_twice_the_same(tmp_path: Path) -> None:
    workload = make_sessions(tmp_path / "sessions.jsonl")
    settings = {"workload": workload, "kv_tokens": 2000, "policies": (NAME, "lru")}
    _, summary = command.simulate(make_settings(tmp_path / "out", **settings))
    clairvoyant, lru = (summary.policies[name] for name in (NAME, "lru"))
    assert clairvoyant.finished == 6
    assert clairvoyant.recomputed_tokens is not None
    assert lru.recomputed_tokens is not None
    assert clairvoyant.recomputed_tokens < lru.recomputed_tokens
    command.simulate(make_settings(tmp_path / "again", **settings))
    assert (tmp_path / "again" / EVENTS_FILE).read_bytes() == (tmp_path / "out" / EVENTS_FILE).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cpu_tokens": 14_000}, "--cpu-tokens 14000: belady-cost knows one cache; leave it out, or run it alone"),
        ({"replicas": 2}, "--replicas 2: belady-cost knows the future of one engine"),
    ],
)
def test_a_future_that_cannot_be_known_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    workload = make_sessions(tmp_path / "sessions.jsonl")
    settings = {"workload": workload, "kv_tokens": 2000, "policies": (NAME,), **changes}
    with pytest.raises(InputError) as caught:
        command.simulate(make_settings(tmp_path / "out", **settings))
    assert str(caught.value).startswith(message)
