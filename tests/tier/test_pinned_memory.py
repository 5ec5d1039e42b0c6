"""The memory that copies go through is had and pinned at the start, and a host may refuse either."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.simple_kv_offload.worker import SimpleCPUOffloadWorker

from agentcache.engine.start_cause import hear_cause, tell_cause
from agentcache.engine.tier.worker import TierWorker
from agentcache.errors import InputError
from agentcache.server import command

ALLOCATION = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"
VLLM_SAYS = "Engine core initialization failed. See root cause above."


def make_worker(monkeypatch: pytest.MonkeyPatch, error: str, *, free_gib: float = 4.0, ranks: int = 1) -> TierWorker:
    """Make a worker of 1.5 GiB, one of so many, whose host says `error` when it is asked, and has so much free."""

    def refuse(*_: Any) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(SimpleCPUOffloadWorker, "register_kv_caches", refuse)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=(free_gib - 0.25) * 2**30))
    monkeypatch.setattr("psutil.swap_memory", lambda: SimpleNamespace(free=0.25 * 2**30))
    parallel = SimpleNamespace(local_world_size=ranks, world_size=ranks)
    config: Any = SimpleNamespace(parallel_config=parallel)
    return TierWorker(config, None, 3 * 2**29)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("cudaHostRegister failed: cudaError.out_of_memory", r"cannot be pinned .*memory.*ulimit -l\)$"),
        (ALLOCATION, r"cannot be had: give less, .*ulimit -v\)$"),
    ],
    ids=["pinned", "had"],
)
def test_memory_that_is_refused_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, error: str, line: str) -> None:
    worker = make_worker(monkeypatch, error)
    with pytest.raises(InputError, match=rf"^--kv-offloading-size: 1\.5 GiB .* {line}"):
        worker.register_kv_caches({"layer": torch.zeros(1)})


def test_memory_that_is_not_free_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux would give it, and end a process when it is written to."""
    worker = make_worker(monkeypatch, "it was asked", free_gib=1.4)
    with pytest.raises(InputError, match=r"^--kv-offloading-size: 1\.5 GiB .*, and 1\.4 GiB are free; give less$"):
        worker.register_kv_caches({"layer": torch.zeros(1)})


def test_memory_is_checked_for_all_ranks_of_a_host_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All look before any takes its own: else the first ones find enough, and all are refused late or ended."""
    looked: list[str] = []
    group = SimpleNamespace(barrier=lambda: looked.append("all ranks"))
    monkeypatch.setattr("agentcache.engine.tier.worker.get_world_group", lambda: group)
    worker = make_worker(monkeypatch, "it was asked", free_gib=5.9, ranks=4)
    with pytest.raises(InputError, match=r"1\.5 GiB .* wanted for each of 4 ranks, and 5\.9 GiB are free; give less$"):
        worker.register_kv_caches({"layer": torch.zeros(1)})
    assert looked == ["all ranks"]


def test_another_error_of_vllm_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(monkeypatch, "no such device")
    with pytest.raises(RuntimeError, match="no such device"):
        worker.register_kv_caches({"layer": torch.zeros(1)})


def test_serve_ends_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's processes end, and vLLM says that there is a cause above."""
    worker = make_worker(monkeypatch, ALLOCATION)

    def fail_to_start(_: Any) -> None:
        with suppress(InputError):
            worker.register_kv_caches({"layer": torch.zeros(1)})
        raise RuntimeError(VLLM_SAYS)

    for name in ("build_arguments", "check_address", "choose_plugins", "configure_logging_from_args", "_check_config"):
        monkeypatch.setattr(command, name, lambda *_, **__: None)
    monkeypatch.setattr(command.ServeSubcommand, "cmd", fail_to_start)
    with pytest.raises(InputError, match=r"^--kv-offloading-size: 1\.5 GiB .*cannot be had"):
        command.serve("tiny", [], None, forced_replies=False, knobs={})


def test_an_error_without_a_cause_stays_vllms() -> None:
    with pytest.raises(RuntimeError, match=VLLM_SAYS), hear_cause():
        raise RuntimeError(VLLM_SAYS)
    # Nobody listens.
    tell_cause("too late")
