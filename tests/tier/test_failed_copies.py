"""A copy that fails ends vLLM's copying thread, and with it the engine: requests would wait for it for ever."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.simple_kv_offload import copy_backend
from vllm.v1.simple_kv_offload.copy_backend import DmaCopyBackend

from agentcache.engine.tier.worker import TierMetadata, TierWorker
from agentcache.errors import ServerError

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class FailingWorker(TierWorker):
    """Its thread is vLLM's own, and dies of the first copy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config: Any = None
        super().__init__(config, None, 1)

        def fail(*_: Any) -> None:
            raise RuntimeError("cuMemcpyBatchAsync failed")

        monkeypatch.setattr(copy_backend, "copy_blocks", fail)
        monkeypatch.setattr(copy_backend, "current_platform", SimpleNamespace(set_device=lambda _: None))
        self.backend: Any = DmaCopyBackend()
        self.backend._queue = queue = SimpleQueue[Any]()
        self.backend._load_params = self.backend._store_params = object()
        stream: Any = SimpleNamespace()
        self.backend._thread = Thread(target=self.backend._copy_loop, args=(queue, None, stream, stream), daemon=True)
        self._backend = self.backend

    def _mark_step_before(self) -> None:
        """There is no GPU."""

    def run_step(self, **copies: Any) -> None:
        self.bind_connector_metadata(TierMetadata(**copies))
        self.start_load_kv()

    def run_copies(self) -> None:
        """Let the thread take what it was asked for, and die of it."""
        self.backend._thread.start()
        self.backend._thread.join(timeout=30)
        assert not self.backend._thread.is_alive()


LOAD = {"load_event": 5, "load_gpu_blocks": [1], "load_cpu_blocks": [2]}
STORE = {"store_event": 5, "store_gpu_blocks": [1], "store_cpu_blocks": [2]}


@pytest.mark.parametrize("copies", [LOAD, STORE], ids=["load", "store"])
def test_a_failed_copy_ends_the_engine(monkeypatch: pytest.MonkeyPatch, copies: dict[str, Any]) -> None:
    worker = FailingWorker(monkeypatch)
    worker.run_step(**copies)
    worker.run_copies()
    with pytest.raises(ServerError, match=r"^--kv-offloading-size: a copy .* failed.*; restart the engine$"):
        worker.get_finished(set())


def test_a_copy_asked_for_later_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended before counts, and a thread that nobody needs any more is no error."""
    worker = FailingWorker(monkeypatch)
    worker.run_step(**LOAD)
    worker.run_copies()
    worker._load_events.append((5, SimpleNamespace(query=lambda: True)))  # type: ignore[arg-type]
    worker.get_finished(set())
    assert worker.build_connector_worker_meta().completed_loads == {5: 1}  # type: ignore[union-attr]
    worker.run_step(**STORE)
    with pytest.raises(ServerError):
        worker.get_finished(set())


def test_copies_under_way_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FailingWorker(monkeypatch)
    worker.run_step(**LOAD)
    monkeypatch.setattr(worker.backend._thread, "is_alive", lambda: True)
    assert worker.get_finished(set()) == (None, None)
