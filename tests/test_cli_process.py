"""The command in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--help"], "replay"), (["replay", "--help"], "--kv-tokens"), (["report", "--help"], "DIR")],
)
def test_help_is_shown_without_loading_an_engine(arguments: list[str], text: str) -> None:
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('loaded:', sorted({'vllm', 'torch', 'transformers'} & set(sys.modules))))\n"
        "from agentcache.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    done = run_python("-c", script, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert text in done.stdout
    assert done.stdout.endswith("loaded: []\n")


def test_the_package_runs_as_a_module() -> None:
    done = run_python("-m", "agentcache", "report", "no-such-folder")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("agentcache: no-such-folder holds no run")
