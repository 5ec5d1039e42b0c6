"""The host's memory that copies go through is pinned, and a host may refuse that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.v1.simple_kv_offload.worker import SimpleCPUOffloadWorker

from agentcache.engine.tier.worker import TierWorker
from agentcache.errors import InputError


def make_worker(monkeypatch: pytest.MonkeyPatch, error: str) -> TierWorker:
    """Make a worker whose host says `error` when it is asked."""

    def refuse(*_: Any) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(SimpleCPUOffloadWorker, "register_kv_caches", refuse)
    config: Any = None
    return TierWorker(config, None, 3 * 2**29)


def test_memory_that_is_not_pinned_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(monkeypatch, "cudaHostRegister failed: cudaError.out_of_memory")
    with pytest.raises(InputError, match=r"^--kv-offloading-size: 1\.5 GiB .* cannot be pinned .*memory.*ulimit"):
        worker.register_kv_caches({"layer": torch.zeros(1)})


def test_another_error_of_vllm_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(monkeypatch, "no such device")
    with pytest.raises(RuntimeError, match="no such device"):
        worker.register_kv_caches({"layer": torch.zeros(1)})
