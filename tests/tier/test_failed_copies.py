"""A copy that cannot be begun is reported as failed, and the next one is made; how long copies take is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from tiered_scheduler import make_tiered

from agentcache.engine.tier import copying_thread
from agentcache.engine.tier.copy_reports import CopyReports
from agentcache.engine.tier.copying_thread import CopyingThread
from agentcache.engine.tier.worker import CopiesDone, CpuTierWorker, HostBlocks, TierMetadata, TierWorker
from agentcache.errors import InputError, ServerError

LOAD = {"load_event": 5, "load_gpu_blocks": [1], "load_cpu_blocks": [2]}
STORE = {"store_event": 5, "store_gpu_blocks": [1], "store_cpu_blocks": [2]}
LATER = {
    "load_event": 7,
    "load_gpu_blocks": [3],
    "load_cpu_blocks": [4],
    "store_event": 6,
    "store_gpu_blocks": [5],
    "store_cpu_blocks": [6],
}


class FakeStream:
    """Does at once what it is asked for; copies take a quarter of a second."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_broken = False

    def wait_event(self, event: Any) -> None:
        """A step takes long, and is no part of a copy."""
        assert event == "the step before"
        self.now_s += 100.0


class FakeEvent:
    """Where its stream was when it was recorded."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: FakeStream) -> None:
        if stream.is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.at_s = stream.now_s

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at_s - self.at_s) * 1e3


class ThreadedWorker(TierWorker):
    """Its thread is the engine's own, over streams that are made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config: Any = None
        super().__init__(config, None, 1)
        self.num_cpu_blocks = 8
        self.failures: list[Exception] = []
        self.streams = FakeStream(), FakeStream()
        monkeypatch.setattr(copying_thread, "torch", SimpleNamespace(Event=FakeEvent))
        monkeypatch.setattr(copying_thread, "copy_blocks", self._copy_blocks)
        monkeypatch.setattr(copying_thread, "current_platform", SimpleNamespace(set_device=lambda _: None))
        monkeypatch.setattr("vllm.v1.simple_kv_offload.copy_backend.build_params", lambda *_, **__: object())
        self.thread: Any = CopyingThread()
        self.thread.init({}, {}, None, *self.streams)
        self._backend = self.thread

    def _mark_step_before(self) -> Any:
        return "the step before"

    def _copy_blocks(self, *_: Any) -> None:
        if self.failures:
            raise self.failures.pop()
        for stream in self.streams:
            stream.now_s += 0.25

    def run_step(self, kind: Any = TierMetadata, **copies: Any) -> None:
        """Ask for copies, and let the thread take them one after the other."""
        self.bind_connector_metadata(kind(**copies))
        self.start_load_kv()
        self.wait_for_save()

    def end_thread(self) -> None:
        """Let it take all that it was asked for."""
        self.thread.shutdown()
        assert not self.thread.is_alive

    def report(self) -> CopiesDone:
        self.get_finished(set())
        done = self.build_connector_worker_meta()
        assert isinstance(done, CopiesDone)
        return done


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedWorker]:
    worker = ThreadedWorker(monkeypatch)
    yield worker
    worker.end_thread()


def test_copies_are_timed_on_their_streams(worker: ThreadedWorker) -> None:
    worker.run_step(**LATER)
    worker.end_thread()
    assert worker.report() == CopiesDone({6: 1}, {7: 1}, seconds={6: 0.25, 7: 0.25})
    assert worker.build_connector_worker_meta() is None


@pytest.mark.parametrize("copies", [LOAD, STORE], ids=["load", "store"])
@pytest.mark.parametrize("error", [RuntimeError("cuMemcpyBatchAsync failed"), MemoryError()], ids=["launch", "memory"])
def test_the_thread_outlives_a_failed_copy(worker: ThreadedWorker, copies: dict[str, Any], error: Exception) -> None:
    worker.failures.append(error)
    worker.run_step(**copies)
    worker.run_step(**LATER)
    worker.end_thread()
    done = worker.report()
    assert done.failed == {5}
    assert done.seconds == {6: 0.25, 7: 0.25}
    assert set(done.completed_store_events) | set(done.completed_loads) == {5, 6, 7}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("copies", [LOAD, STORE], ids=["load", "store"])
def test_an_error_on_the_stream_ends_the_engine(worker: ThreadedWorker, copies: dict[str, Any]) -> None:
    for stream in worker.streams:
        stream.is_broken = True
    worker.run_step(**copies)
    worker.end_thread()
    with pytest.raises(ServerError, match=r"^--kv-offloading-size: a copy .* thread is dead .*; restart the engine$"):
        worker.get_finished(set())


def test_an_idle_thread_that_is_dead_is_no_error(worker: ThreadedWorker) -> None:
    worker.end_thread()
    worker.bind_connector_metadata(TierMetadata())
    assert worker.get_finished(set()) == (None, None)


def test_a_failed_copy_of_vllms_own_ends_the_engine(worker: ThreadedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scheduler knows of no stores that fail."""
    monkeypatch.setattr(torch, "Event", lambda: SimpleNamespace(record=lambda _: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    worker.failures.append(RuntimeError("cuMemcpyBatchAsync failed"))
    worker.streams[1].wait_event = lambda _: None  # type: ignore[method-assign]
    worker.run_step(TierMetadata.__base__, **STORE)
    worker.end_thread()
    with pytest.raises(ServerError, match=r"^--kv-offloading-size: a copy .* failed .*; restart the engine$"):
        worker.get_finished(set())


def test_vllms_thread_gives_way_to_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def init_cpu_mode(worker: TierWorker, *_: Any) -> None:
        worker._backend = SimpleNamespace(shutdown=lambda: made.append("ended"))  # type: ignore[assignment]
        worker.cpu_kv_caches = {}

    monkeypatch.setattr("vllm.v1.simple_kv_offload.worker.SimpleCPUOffloadWorker._init_cpu_mode", init_cpu_mode)
    monkeypatch.setattr(CopyingThread, "init", lambda *_: made.append("begun"))
    config: Any = None
    worker = TierWorker(config, None, 1)
    worker._init_cpu_mode({}, 1, torch.device("cpu"))
    assert made == ["ended", "begun"]
    assert isinstance(worker._backend, CopyingThread)


def test_a_copy_on_the_cpu_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = None
    worker = CpuTierWorker(config, None, 1)
    worker.num_cpu_blocks = 8
    worker.gpu_kv_caches = {"layer": torch.arange(8.0).reshape(8, 1)}
    worker.cpu_kv_caches = {"layer": torch.zeros(8, 1)}
    times = iter([1.0, 2.0, 2.5, 5.0, 5.125])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    for copies in ({**LOAD, "load_gpu_blocks": [99]}, LATER):
        worker.bind_connector_metadata(TierMetadata(**copies))
        worker.start_load_kv()
        worker.wait_for_save()
    worker.get_finished(set())
    done = worker.build_connector_worker_meta()
    assert done == CopiesDone({6: 1}, {5: 1, 7: 1}, failed={5}, seconds={7: 0.5, 6: 0.125})
    assert worker.cpu_kv_caches["layer"].flatten().tolist() == [0, 0, 0, 0, 0, 0, 5, 0]


def test_a_failure_is_logged_by_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's loggers keep to a host's first rank unless they are told otherwise."""
    monkeypatch.setattr("vllm.distributed.parallel_state.is_local_first_rank", lambda: False)
    told = mock.Mock()
    monkeypatch.setattr(copying_thread.logger, "warning", told)
    copying_thread.tell_failure(RuntimeError("of the second rank"))
    assert told.call_count == 1


@pytest.mark.parametrize("copies", [{**LOAD, "load_cpu_blocks": [8]}, {**STORE, "store_cpu_blocks": [2, 9]}])
def test_a_copy_beyond_the_host_is_refused(worker: ThreadedWorker, copies: dict[str, Any]) -> None:
    """What copies blocks computes an address from any number."""
    with pytest.raises(ServerError, match=r"^--kv-offloading-size: a copy .* names block [89] of 8; restart"):
        worker.run_step(**copies)


@pytest.mark.parametrize(("least", "is_refused"), [(200, False), (201, False), (199, True)])
def test_a_worker_with_less_room_is_refused(*, least: int, is_refused: bool, tiny_model_path: str) -> None:
    """Stages with more layers have room for fewer blocks."""
    connector = make_tiered(tiny_model_path, host_blocks=200).scheduler.connector
    workers = {(0, 0): HostBlocks(200), (1, 0): HostBlocks(least)}
    expected = pytest.raises(InputError, match="199 blocks, the first for 200") if is_refused else nullcontext()
    with expected:
        connector.set_xfer_handshake_metadata_pp_aware(workers)


def test_a_copy_has_failed_if_it_did_at_any_worker() -> None:
    reports = CopyReports(workers=2)
    first = CopiesDone({1: 1, 2: 1}, {3: 1}, failed={2}, seconds={1: 0.5, 3: 2.0})
    second = CopiesDone({1: 1}, {3: 1}, seconds={1: 0.25, 3: 3.0})
    assert reports.add(first.aggregate(second)) == ({1: 0.75}, {3: 5.0})
    # The other worker has made it.
    assert reports.add(CopiesDone({2: 1}, {4: 1}, seconds={2: 0.5, 4: 1.0})) == ({2: None}, {})
    assert reports.add(CopiesDone({}, {4: 1}, seconds={4: 1.5})) == ({}, {4: 2.5})
    assert (len(reports._ended), reports._failed, reports._seconds) == (0, set(), {})
