"""Processes of vLLM, forked from one that has loaded vLLM: each by itself would load it for seven seconds.

What they are given is pickled, as it is for processes that are spawned.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

_FORKSERVER = multiprocessing.get_context("forkserver")
# All that a worker loads.
_FORKSERVER.set_forkserver_preload(["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"])


def get_context(_method: str | None = None) -> BaseContext:
    """In the place of multiprocessing's: on CPUs vLLM spawns whatever it is told."""
    return _FORKSERVER


@contextmanager
def run_forkserver(model: str) -> Iterator[None]:
    """Start the process that others are forked from: they have its environment, which says which runner they take."""
    from vllm.engine.arg_utils import EngineArgs

    # With an engine's configuration vLLM sets the environment.
    EngineArgs(model=model).create_engine_config()
    before = psutil.Process().children()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        ensure_running()
    servers = [
        each for each in psutil.Process().children() if each not in before and "forkserver" in each.cmdline()[-1]
    ]
    yield
    for server in servers:
        server.kill()


def run_code(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -c CODE ARGUMENTS`, but for the loading."""
    with TemporaryDirectory() as folder:
        process = _FORKSERVER.Process(target=_execute, args=(code, arguments, folder))
        process.start()
        process.join()
        out, errors = (Path(folder, name).read_text(errors="replace") for name in ("1", "2"))
    return subprocess.CompletedProcess(arguments, process.exitcode or 0, out, errors)


def _execute(code: str, arguments: Sequence[str], folder: str) -> None:
    for output in (1, 2):
        os.dup2(os.open(f"{folder}/{output}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), output)
    sys.argv = ["-c", *arguments]
    exec(code, {"__name__": "__main__"})
