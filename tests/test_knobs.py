from __future__ import annotations

from dataclasses import asdict

import pytest

from agentcache.cli import main
from agentcache.config import AgentCacheConfig, OrderConfig, iterate_constants, iterate_knobs
from agentcache.policy.registry import DEFAULT_POLICY, POLICIES


def test_every_knob_is_listed_with_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs"]) == 0
    text = capsys.readouterr().out
    for name, field in iterate_knobs(AgentCacheConfig):
        assert f"{name}=" in text
        assert f"\n    {field.description}\n" in text
    assert 'policy="agentcache"\n' in text
    assert "tuning." not in text.replace("docs/tuning.md", "")


def test_constants_are_listed_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs", "tuning"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert [head.partition("=")[0] for head in heads] == [name for name, _ in iterate_constants()]


def test_the_order_of_the_default_policy_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    runtime = POLICIES[DEFAULT_POLICY].runtime
    assert runtime is not None
    assert runtime.order is not None
    for name, value in asdict(runtime.order).items():
        assert main(["knobs", f"{'order' if name in OrderConfig.model_fields else 'tuning'}.{name}"]) == 0
        assert f"\n    chosen: policy {DEFAULT_POLICY} has {value:g}, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "shown"),
    [("pins.budget", ["pins.budget"]), ("tier", ["enabled", "link_gb_s"]), ("tuning.row_s", ["tuning.row_s"])],
)
def test_one_knob_or_a_group_is_shown(name: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs", name]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert [head.partition("=")[0].removeprefix(f"{name}.") for head in heads] == shown


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("pins.bugdet", "pins.budget"),
        ("pin", "pins"),
        ("budget", "pins.budget"),
        ("tuning.row", "tuning.row_s"),
        ("segments.row_s", "tuning.row_s"),
    ],
)
def test_a_knob_that_is_not_there_is_guessed(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs", name]) == 2
    assert capsys.readouterr().err == f"agentcache: knobs {name}: there is no such knob; did you mean {meant}?\n"


def test_no_name_is_guessed_for_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs", ""]) == 2
    assert capsys.readouterr().err == "agentcache: knobs : there is no such knob\n"
