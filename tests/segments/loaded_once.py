"""Processes of vLLM, forked from one that has loaded vLLM: each by itself would load it for seven seconds.

What they are given is pickled, as it is for processes that are spawned.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext

_FORKSERVER = multiprocessing.get_context("forkserver")
# All that a worker loads.
_FORKSERVER.set_forkserver_preload(["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"])


def get_context(_method: str | None = None) -> BaseContext:
    """In the place of multiprocessing's: on CPUs vLLM spawns whatever it is told."""
    return _FORKSERVER
