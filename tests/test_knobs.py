from __future__ import annotations

import pytest

from agentcache.cli import main
from agentcache.config import AgentCacheConfig, iterate_knobs


def test_every_knob_is_listed_with_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs"]) == 0
    text = capsys.readouterr().out
    for name, field in iterate_knobs(AgentCacheConfig):
        assert f"{name}=" in text
        assert f"\n    {field.description}\n" in text
    assert 'policy="agentcache"\n' in text


@pytest.mark.parametrize(
    ("name", "shown"), [("pins.budget", ["pins.budget"]), ("chunking", ["enabled", "threshold", "floor"])]
)
def test_one_knob_or_a_group_is_shown(name: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs", name]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert [head.partition("=")[0].removeprefix(f"{name}.") for head in heads] == shown


def test_a_knob_that_is_not_there_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs", "pins.bugdet"]) == 2
    assert (
        capsys.readouterr().err == "agentcache: knobs pins.bugdet: there is no such knob; did you mean pins.budget?\n"
    )
