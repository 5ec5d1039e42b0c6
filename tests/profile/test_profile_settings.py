from __future__ import annotations

from pathlib import Path

import pytest

from agentcache.cli import main
from agentcache.errors import InputError
from agentcache.profile.settings import ProfileSettings


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[ProfileSettings]:
    """What would be measured by."""
    asked: list[ProfileSettings] = []
    monkeypatch.setattr("agentcache.profile.command.profile", lambda each: asked.append(each) or 0)
    return asked


def test_options_become_settings(settings: list[ProfileSettings], tmp_path: Path) -> None:
    assert main(["profile", "tiny"]) == 0
    typed = ["shape:llama-3.1-8b", f"--out={tmp_path}", "--budget-s=60", "--points=100", "--max-tokens=4096"]
    assert main(["profile", *typed, "--seed", "3", "--overwrite", "--", "-tp", "2"]) == 0
    assert settings == [
        ProfileSettings(model="tiny"),
        ProfileSettings(
            model="shape:llama-3.1-8b",
            engine_options=("-tp", "2"),
            out=tmp_path,
            overwrite=True,
            budget_s=60,
            points=100,
            max_tokens=4096,
            seed=3,
        ),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget_s": 0.0}, "--budget-s 0: give"),
        ({"budget_s": float("nan")}, "--budget-s nan: give"),
        ({"points": 3}, "--points 3: give at least 16"),
        ({"max_tokens": 100}, "--max-tokens 100: give at least 1024"),
        ({"out": Path(__file__) / "x"}, "is a file; give a folder"),
    ],
)
def test_what_cannot_work_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ProfileSettings(model="tiny", **change).check()  # type: ignore[arg-type]


def test_the_key_has_the_models_own_name(tmp_path: Path) -> None:
    (tmp_path / "My-Model").mkdir()
    names = ["tiny", "shape:llama-3.1-8b", "meta-llama/Llama-3.1-8B", str(tmp_path / "My-Model")]
    found = [ProfileSettings(model=name).model_name for name in names]
    assert found == ["tiny", "llama-3.1-8b", "meta-llama/Llama-3.1-8B", "My-Model"]
