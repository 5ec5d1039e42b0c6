from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from agentcache.errors import InputError
from agentcache.profile.settings import ProfileSettings, add_arguments, read_settings


def test_options_become_settings(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    settings = read_settings(parser.parse_args(["tiny"]), [])
    assert settings == ProfileSettings(model="tiny")
    settings.check()
    typed = [
        "shape:llama-3.1-8b",
        "--out",
        str(tmp_path),
        "--budget-s",
        "60",
        "--points",
        "100",
        "--max-tokens",
        "4096",
    ]
    settings = read_settings(parser.parse_args([*typed, "--seed", "3", "--overwrite"]), ["-tp", "2"])
    assert settings == ProfileSettings(
        model="shape:llama-3.1-8b",
        engine_options=("-tp", "2"),
        out=tmp_path,
        overwrite=True,
        budget_s=60,
        points=100,
        max_tokens=4096,
        seed=3,
    )


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
