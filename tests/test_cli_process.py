"""The command in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run_python(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=folder)


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


SIMULATE = ["simulate", "bfcl", "--kv-tokens=9000"]
REPLAY = ["replay", "bfcl", "--model=tiny", "--policy=lru"]


REFUSED = [
    (["serve", "tiny", "--policy=fifo"], "--policy fifo: unknown"),
    (["serve", "tiny", "--agentcache=pins.budget=2"], "--agentcache pins.budget: "),
    (["serve", "shape:gpt"], "model shape:gpt: unknown shape"),
    (["serve", "./nowhere"], "model ./nowhere: there is no such folder"),
    ([*REPLAY, "--out=/proc/out"], "--out /proc/out: cannot be written"),
    ([*REPLAY, "--out=out", "--policy=fifo"], "--policy fifo: unknown"),
    ([*REPLAY, "--out=out", "--tool-latency=soon"], "--tool-latency soon: "),
    (["replay", "chat", *REPLAY[2:], "--out=out"], "workload chat: unknown"),
    ([*SIMULATE, "--policy=fifo", "--out=out"], "--policy fifo: unknown"),
    ([*SIMULATE, "--policy=lru", "--out=/proc/out"], "--out /proc/out: cannot be written"),
    ([*SIMULATE, "--policy=lru", "--out=out", "--scale=5"], "--scale 5: give a number above 0 and up to 4"),
    ([*SIMULATE, "--policy=lru", "--out=out", "--model=owner/model"], "model owner/model: there is no such folder"),
    (["profile", "tiny", "--points=1"], "--points 1: give at least"),
    (["profile", "tiny", "--out=/proc/out"], "--out /proc/out: cannot be written"),
    (["profile", "/nowhere"], "model /nowhere: there is no such folder"),
]


def test_bad_options_are_refused_before_vllm_is_loaded(tmp_path: Path) -> None:
    script = (
        "import json, sys\n"
        "from agentcache.cli import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    print(main(arguments), flush=True)\n"
        "print('loaded:', sorted({'vllm', 'torch', 'transformers', 'matplotlib'} & set(sys.modules)))\n"
    )
    done = run_python("-c", script, json.dumps([arguments for arguments, _ in REFUSED]), folder=tmp_path)
    assert done.stdout.splitlines() == ["2"] * len(REFUSED) + ["loaded: []"], done.stderr
    for line, (_, text) in zip(done.stderr.splitlines(), REFUSED, strict=True):
        assert line.startswith("agentcache: ")
        assert text in line
    assert list(tmp_path.iterdir()) == []


def test_the_package_runs_as_a_module() -> None:
    done = run_python("-m", "agentcache", "report", "no-such-folder")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("agentcache: no-such-folder holds no run")
