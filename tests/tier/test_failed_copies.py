"""A copy that cannot be begun is reported as failed, and the next one is made; how long copies take is measured."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from queue import Queue
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from kept_objects import list_kept
from tiered_scheduler import make_tiered

from agentcache.engine.cpu_cache.connector import TierConnector
from agentcache.engine.cpu_cache.host_cache import Store
from agentcache.engine.cpu_cache.tier import Copies
from agentcache.engine.vllm import copiers
from agentcache.engine.vllm.connector import CopiesDone, CopyingConnector, HostBlocks
from agentcache.engine.vllm.copiers import CopyOrders, Ended, PlainCopier, StreamCopier
from agentcache.engine.vllm.workers import KVConnectorRole
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
    """Does what it is asked for when it is `run`, in its order; a copy takes a quarter of a second."""

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    def __init__(self, priority: int) -> None:
        assert priority == 0, "steps go first"
        self.now_s = 0.0
        self.is_broken = False
        self.is_late = False
        self.queue: list[Any] = []

    def add(self, work: Any) -> None:
        self.queue.append(work)
        if not self.is_late:
            self.run()

    def run(self) -> None:
        """Do all that can be done: what is behind an event waits for it."""
        while self.queue and self.queue[0]() is not False:
            self.queue.pop(0)

    def wait_event(self, event: FakeEvent) -> None:
        """A step takes long, and is no part of a copy."""
        self.now_s += 100.0
        self.add(event.query)

    def synchronize(self) -> None:
        self.is_late = False
        self.run()
        assert not self.queue


class FakeEvent:
    """Where its stream was when it was recorded; one without timing is of a step, which a test ends."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.is_timed = enable_timing
        self.has_come = False

    def record(self, stream: FakeStream | None) -> None:
        if not self.is_timed:
            assert stream is None, "the step's stream"
            return
        assert stream is not None
        if stream.is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        stream.add(lambda: self._come(stream))

    def _come(self, stream: FakeStream) -> None:
        self.at_s, self.has_come = stream.now_s, True

    def query(self) -> bool:
        return self.has_come

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at_s - self.at_s) * 1e3


class Asked(Queue[Any]):
    """What a thread was asked for is done when it asks for the next."""

    has_given = False

    def get(self, *args: Any) -> Any:
        if self.has_given:
            self.task_done()
        asked = super().get(*args)
        self.has_given = True
        return asked


class Device:
    """A GPU that is made up, with blocks of one number each. Steps end when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_gpu = {"layer": torch.arange(8.0).reshape(8, 1)}
        self.on_host = {"layer": torch.full((8, 1), -1.0)}
        self.failures: list[Exception] = []
        self.steps: list[FakeEvent] = []
        # That of loads, and that of stores.
        self.streams: list[FakeStream] = []
        self.asked = Asked()
        self.thread: threading.Thread | None = None
        cuda = SimpleNamespace(Stream=FakeStream, current_stream=lambda: None)
        monkeypatch.setattr(copiers, "torch", SimpleNamespace(Event=self._make_event, cuda=cuda))
        monkeypatch.setattr(copiers, "build_params", self._build_params)
        monkeypatch.setattr(copiers, "copy_blocks", self._copy)
        monkeypatch.setattr(copiers, "current_platform", SimpleNamespace(set_device=lambda _: None))
        monkeypatch.setattr(copiers, "SimpleQueue", lambda: self.asked)
        monkeypatch.setattr(copiers, "Thread", self._make_thread)
        self.copier = StreamCopier(self.on_gpu, self.on_host)

    def _build_params(self, sources: Any, targets: Any, stream: FakeStream, **_: Any) -> tuple[Any, Any, FakeStream]:
        self.streams.insert(0 if targets is self.on_gpu else len(self.streams), stream)
        return sources, targets, stream

    def _make_thread(self, **options: Any) -> threading.Thread:
        self.thread = threading.Thread(**options)
        return self.thread

    def _make_event(self, *, enable_timing: bool = False) -> FakeEvent:
        event = FakeEvent(enable_timing=enable_timing)
        if not enable_timing:
            self.steps.append(event)
        return event

    def _copy(self, sources: list[int], targets: list[int], params: tuple[Any, Any, FakeStream]) -> None:
        if self.failures:
            raise self.failures.pop()
        read, written, stream = params

        def copy() -> None:
            stream.now_s += 0.25
            for name, source in read.items():
                written[name][targets] = source[sources]

        stream.add(copy)

    def ask(self, *, step_ends: bool = True, **copies: Any) -> None:
        """Ask for copies beside a step."""
        self.copier.mark_step()
        self.steps[-1].has_come = step_ends
        self.copier.begin(CopyOrders(**copies))

    def wait_for_thread(self) -> None:
        """Let it take all that it was asked for, and live on."""
        with self.asked.all_tasks_done:
            assert self.asked.all_tasks_done.wait_for(lambda: not self.asked.unfinished_tasks, timeout=60)

    def end_thread(self) -> None:
        """Let it take all that it was asked for."""
        assert self.thread is not None
        self.asked.put(None)
        self.thread.join()

    def read(self, place: str) -> list[float]:
        tensor = {"gpu": self.on_gpu, "host": self.on_host}[place]["layer"]
        return [float(value) for value in tensor.flatten()]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device = Device(monkeypatch)
    yield device
    device.end_thread()


def test_copies_are_timed_on_their_streams(device: Device) -> None:
    device.ask(**LATER)
    device.end_thread()
    assert device.copier.take_ended() == [Ended(7, 0.25), Ended(6, 0.25)]
    assert device.copier.take_ended() == []
    assert (device.read("gpu")[3], device.read("host")[6]) == (-1, 5)


def test_copies_wait_for_the_steps_before(device: Device) -> None:
    """One of them may compute what is stored, or write to what is loaded into."""
    device.ask(step_ends=False, **LATER)
    device.wait_for_thread()
    assert device.copier.take_ended() == []
    assert (device.read("gpu")[3], device.read("host")[6]) == (3, -1)
    device.on_gpu["layer"][5] = 55.0  # By the step.
    device.steps[-1].has_come = True
    for stream in device.streams:
        stream.run()
    assert {each.number for each in device.copier.take_ended()} == {6, 7}
    assert (device.read("gpu")[3], device.read("host")[6]) == (-1, 55)


@pytest.mark.parametrize("late", [0, 1], ids=["load", "store"])
def test_a_late_copy_is_told_late_and_delays_no_other_way(device: Device, late: int) -> None:
    device.streams[late].is_late = True
    device.ask(**LATER)
    device.wait_for_thread()
    assert [each.number for each in device.copier.take_ended()] == [[7, 6][1 - late]]
    device.streams[late].synchronize()
    assert [each.number for each in device.copier.take_ended()] == [[7, 6][late]]


@pytest.mark.parametrize("copies", [LOAD, STORE], ids=["load", "store"])
@pytest.mark.parametrize("error", [RuntimeError("cuMemcpyBatchAsync failed"), MemoryError()], ids=["launch", "memory"])
def test_the_thread_outlives_a_failed_copy(device: Device, copies: dict[str, Any], error: Exception) -> None:
    device.failures.append(error)
    device.ask(**copies)
    device.ask(**LATER)
    device.end_thread()
    assert sorted(device.copier.take_ended()) == [Ended(5, None), Ended(6, 0.25), Ended(7, 0.25)]


@pytest.mark.parametrize("copies", [LOAD, STORE], ids=["load", "store"])
def test_a_failed_copy_is_told_when_what_began_has_ended(device: Device, copies: dict[str, Any]) -> None:
    """Its blocks are used again then."""
    device.failures.append(RuntimeError("cuMemcpyBatchAsync failed"))
    for stream in device.streams:
        stream.is_late = True
    device.ask(**copies)
    device.wait_for_thread()
    assert device.copier.take_ended() == []
    for stream in device.streams:
        stream.synchronize()
    assert device.copier.take_ended() == [Ended(5, None)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("copies", [LOAD, STORE], ids=["load", "store"])
def test_an_error_on_the_stream_ends_the_engine(device: Device, copies: dict[str, Any]) -> None:
    for stream in device.streams:
        stream.is_broken = True
    device.ask(**copies)
    device.end_thread()
    with pytest.raises(ServerError, match=r"^--kv-offloading-size: a copy .* thread is dead .*; restart the engine$"):
        device.copier.take_ended()


def test_an_idle_thread_that_is_dead_is_no_error(device: Device) -> None:
    device.end_thread()
    assert device.copier.take_ended() == []


def test_memory_is_given_back_when_all_copies_have_ended(device: Device) -> None:
    """A copy would read or write what lies there next."""
    unpinned: list[int] = []

    def unpin(address: int) -> None:
        assert not any(stream.queue for stream in device.streams)
        unpinned.append(address)

    device.on_host["layer"] = mock.Mock(is_pinned=lambda: True, data_ptr=lambda: 4096)
    copiers.torch.cuda.cudart = lambda: SimpleNamespace(cudaHostUnregister=unpin)  # type: ignore[attr-defined]
    device.streams[0].is_late = True
    device.failures.append(RuntimeError("cuMemcpyBatchAsync failed"))
    device.ask(**LOAD)
    device.copier.close()
    assert unpinned == [4096]
    device.copier.close()
    assert unpinned == [4096], "once"


def test_a_copy_on_the_cpu_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu, on_host = {"layer": torch.arange(8.0).reshape(8, 1)}, {"layer": torch.zeros(8, 1)}
    copier = PlainCopier(on_gpu, on_host)
    times = iter([1.0, 2.0, 2.5, 5.0, 5.125])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    for copies in ({**LOAD, "load_gpu_blocks": [99]}, LATER):
        copier.mark_step()
        copier.begin(CopyOrders(**copies))
    assert copier.take_ended() == [Ended(5, None), Ended(7, 0.5), Ended(6, 0.125)]
    assert on_host["layer"].flatten().tolist() == [0, 0, 0, 0, 0, 0, 5, 0]
    assert copier.take_ended() == []


def test_a_failure_is_logged_by_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's loggers keep to a host's first rank unless they are told otherwise."""
    monkeypatch.setattr("vllm.distributed.parallel_state.is_local_first_rank", lambda: False)
    told = mock.Mock()
    monkeypatch.setattr(copiers.logger, "warning", told)
    copiers.tell_failure(RuntimeError("of the second rank"))
    assert told.call_count == 1


def make_worker(model_path: str) -> CopyingConnector:
    """A worker's side, with a copier that ends what it is asked for at once."""
    scheduler = make_tiered(model_path, host_blocks=200).scheduler
    worker = TierConnector(scheduler.vllm_config, KVConnectorRole.WORKER, scheduler.kv_cache_config)
    assert isinstance(worker, CopyingConnector)
    worker.copier = PlainCopier({}, {})
    return worker


@pytest.mark.parametrize("copies", [{**LOAD, "load_cpu_blocks": [200]}, {**STORE, "store_cpu_blocks": [2, 201]}])
def test_a_copy_beyond_the_host_is_refused(copies: dict[str, Any], tiny_model_path: str) -> None:
    """What copies blocks computes an address from any number."""
    worker = make_worker(tiny_model_path)
    with pytest.raises(ServerError, match=r"^--kv-offloading-size: a copy .* names block 20[01] of 200; restart"):
        worker.bind_connector_metadata(CopyOrders(**copies))


def test_a_worker_reports_each_copy_once(tiny_model_path: str) -> None:
    worker = make_worker(tiny_model_path)
    worker.bind_connector_metadata(CopyOrders(**LATER))
    worker.start_load_kv(None)
    worker.wait_for_save()
    done = worker.build_connector_worker_meta()
    assert done is not None
    assert done.ended.keys() == {6, 7}
    assert all(seconds is not None and seconds >= 0 for (seconds,) in done.ended.values())
    assert worker.build_connector_worker_meta() is None


@pytest.mark.parametrize(("least", "is_refused"), [(200, False), (201, False), (199, True)])
def test_a_worker_with_less_room_is_refused(*, least: int, is_refused: bool, tiny_model_path: str) -> None:
    """Stages with more layers have room for fewer blocks."""
    connector = make_tiered(tiny_model_path, host_blocks=200).scheduler.connector
    workers = {(0, 0): HostBlocks(200), (1, 0): HostBlocks(least)}
    expected = pytest.raises(InputError, match="199 blocks, the first for 200") if is_refused else nullcontext()
    with expected:
        connector.set_xfer_handshake_metadata_pp_aware(workers)


def test_a_copy_has_failed_if_it_did_at_any_worker() -> None:
    copies = Copies(workers=2, most_fetched=1)
    stores = [Store([], []) for _ in range(5)]
    for store in stores:
        copies.begin(store)
    first = CopiesDone({1: [0.5], 2: [None], 3: [2.0]})
    second = CopiesDone({1: [0.25], 3: [3.0]})
    assert copies.end(first.aggregate(second)) == ([(stores[1], 0.75), (stores[3], 5.0)], [])
    # The other worker has made it.
    assert copies.end(CopiesDone({2: [0.5], 4: [1.0]})) == ([(stores[2], None)], [])
    assert copies.end(CopiesDone({4: [1.5]})) == ([(stores[4], 2.5)], [])
    assert list_kept(copies, CopiesDone) == [CopiesDone()], "of what has ended nothing is kept"
