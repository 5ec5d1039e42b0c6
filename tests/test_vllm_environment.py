"""An environment for another release of vLLM is made of its wheel's Python and the operators that are here."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest
import vllm_environment
from vllm_environment import make_environment, unpack

WHEEL = {
    "vllm/__init__.py": "",
    "vllm/_C.abi3.so": "for GPUs",
    "vllm/vllm_flash_attn/cute/__init__.py": "",
    "vllm-0.99.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0\n\nVersion 0.99 is new.\n",
}


def write_wheel(folder: Path) -> Path:
    wheel = folder / "vllm-0.99.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for name, text in WHEEL.items():
            archive.writestr(name, text)
    return wheel


def list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_wheel_for_gpus_becomes_one_for_the_cpu(tmp_path: Path) -> None:
    unpack(write_wheel(tmp_path), tmp_path / "site")
    assert list_files(tmp_path / "site") == {"vllm/__init__.py", "vllm-0.99.0.dist-info/METADATA"}
    metadata = (tmp_path / "site" / "vllm-0.99.0.dist-info" / "METADATA").read_text()
    assert metadata.splitlines()[1:] == ["Name: vllm", "Version: 0.99.0+cpu", "", "Version 0.99 is new."]


def test_what_is_complete_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(vllm_environment.subprocess, "run", lambda *args, **_: made.append(args))
    (tmp_path / "complete").touch()
    make_environment("0.99", tmp_path)
    assert made == []
