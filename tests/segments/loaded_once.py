"""Processes of vLLM, forked from one that has loaded vLLM: each by itself would load it for seven seconds.

What they are given is pickled, as it is for processes that are spawned.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path

import prometheus_client.values
import psutil
import pytest

_FORKSERVER = multiprocessing.get_context("forkserver")
_FORKSERVER.set_forkserver_preload(["preloaded"])


def get_context(_method: str | None = None) -> BaseContext:
    """In the place of multiprocessing's: on CPUs vLLM spawns whatever it is told."""
    return _FORKSERVER


def _is_forkserver(process: psutil.Process) -> bool:
    try:
        return "forkserver" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        # Another child, of a library's, that has ended since; before it is waited for it has no command line.
        return False


@contextmanager
def run_forkserver(model: str) -> Iterator[None]:
    """Start the process that others are forked from: they have its environment, which says which runner they take."""
    from vllm.engine.arg_utils import EngineArgs

    # With an engine's configuration vLLM sets the environment.
    EngineArgs(model=model).create_engine_config()
    before = psutil.Process().children()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
        # Python 3.11 looks for what is preloaded there alone, and goes on without what it does not find.
        environment.setenv("PYTHONPATH", str(Path(__file__).parent))
        ensure_running()
    servers = [each for each in psutil.Process().children() if each not in before and _is_forkserver(each)]
    yield
    for server in servers:
        server.kill()
        server.wait()


@contextmanager
def run_command(
    arguments: Sequence[str], output: Path, environment: Mapping[str, str] | None = None
) -> Iterator[BaseProcess]:
    """Run `agentcache` in a session of its own, killed at the end; vLLM's processes in it are forked from it."""
    process = _FORKSERVER.Process(target=_be_command, args=(arguments, output, environment or {}))
    process.start()
    try:
        yield process
    finally:
        if process.is_alive():
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def _be_command(arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
    os.setsid()
    with output.open("wb") as file:
        for target in (1, 2):
            os.dup2(file.fileno(), target)
    os.environ.update(environment)
    # Where it is to keep its values it reads when it is imported, and it was.
    prometheus_client.values.ValueClass = prometheus_client.values.get_value_class()
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _method=None: fork  # type: ignore[assignment]
    from agentcache.cli import main

    sys.exit(main(arguments))
