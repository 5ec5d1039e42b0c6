"""What the wheel requires is in its environment, and nothing else; that it is enough: test_plain_serve.py."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from wheel_install import PIP, without_checkout

# The wheel may have to be built.
pytestmark = pytest.mark.engine

TELL_INSTALLED = """
import json
from importlib.metadata import distribution, distributions
names = sorted({found.name.lower() for found in distributions()})
print(json.dumps({"names": names, "origin": json.loads(distribution("vllm-agentcache").read_text("direct_url.json"))}))
"""


def test_neither_the_checkout_nor_its_tools_are_there(wheel_bin: Path, tmp_path: Path) -> None:
    command = [str(wheel_bin / "python"), "-c", TELL_INSTALLED]
    done = subprocess.run(command, env=without_checkout(), cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    installed = json.loads(done.stdout)
    assert installed["origin"]["url"].endswith(".whl")
    assert {"vllm-agentcache", "torch"} <= set(installed["names"])
    assert {"pip", "pytest", "mypy", "scikit-build-core"}.isdisjoint(installed["names"])


def test_what_the_wheel_requires_is_there(wheel_bin: Path) -> None:
    # vLLM's own requirements that cannot load beside PyTorch for the CPU are not (Makefile).
    command = [*PIP, "--python", str(wheel_bin / "python"), "check"]
    said = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
    assert said != [], "pip says at least that nothing is missing"
    assert [line for line in said if line.startswith("vllm-agentcache")] == []
