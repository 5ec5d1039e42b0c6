"""Processes of vLLM, forked from one that has loaded vLLM: each by itself would load it for seven seconds.

What they are given is pickled, as it is for processes that are spawned.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.forkserver import ensure_running

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
