"""What the wheel brings and requires is enough, and nothing else is in its environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from wheel_install import PACKAGES, PIP, without_checkout

# Every Python here loads vLLM.
pytestmark = pytest.mark.engine

IMPORT_ALL = """
import importlib, pkgutil, sys
for package in map(importlib.import_module, sys.argv[1:]):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
"""
TELL_INSTALLED = """
import json
from importlib.metadata import distribution, distributions
names = sorted({found.name.lower() for found in distributions()})
print(json.dumps({"names": names, "origin": json.loads(distribution("vllm-agentcache").read_text("direct_url.json"))}))
"""


def run(wheel_bin: Path, folder: Path, code: str, *arguments: str) -> str:
    command = [str(wheel_bin / "python"), "-c", code, *arguments]
    done = subprocess.run(command, env=without_checkout(), cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_every_module_can_be_imported(wheel_bin: Path, tmp_path: Path) -> None:
    run(wheel_bin, tmp_path, IMPORT_ALL, *PACKAGES)


def test_neither_the_checkout_nor_its_tools_are_there(wheel_bin: Path, tmp_path: Path) -> None:
    installed = json.loads(run(wheel_bin, tmp_path, TELL_INSTALLED))
    assert installed["origin"]["url"].endswith(".whl")
    assert {"vllm-agentcache", "torch"} <= set(installed["names"])
    assert {"pip", "pytest", "mypy", "scikit-build-core"}.isdisjoint(installed["names"])


def test_what_the_wheel_requires_is_there(wheel_bin: Path) -> None:
    # vLLM's own requirements that cannot load beside PyTorch for the CPU are not (Makefile).
    command = [*PIP, "--python", str(wheel_bin / "python"), "check"]
    said = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
    assert said != [], "pip says at least that nothing is missing"
    assert [line for line in said if line.startswith("vllm-agentcache")] == []
