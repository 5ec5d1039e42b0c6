"""The memory that copies go through is had and pinned at the start, and a host may refuse either."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentcache.engine.start_cause import hear_cause, refuse_start
from agentcache.engine.vllm import host_memory
from agentcache.engine.vllm.host_memory import find_pieces, make_host_pieces, take_memory
from agentcache.engine.vllm.types import KVCacheConfig, KVCacheTensor
from agentcache.errors import InputError
from agentcache.server import command

ALLOCATION = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"
VLLM_SAYS = "Engine core initialization failed. See root cause above."


class Host:
    """1.5 GiB for each of so many ranks are asked of a host that says `error`, and has so much free."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: str, *, free_gib: float = 4.0, ranks: int = 1) -> None:
        def refuse(*_: Any) -> None:
            raise RuntimeError(error)

        monkeypatch.setattr(host_memory, "make_host_pieces", refuse)
        monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=(free_gib - 0.25) * 2**30))
        monkeypatch.setattr("psutil.swap_memory", lambda: SimpleNamespace(free=0.25 * 2**30))
        parallel = SimpleNamespace(local_world_size=ranks, world_size=ranks)
        transfer = SimpleNamespace(kv_connector_extra_config={"cpu_bytes_to_use": ranks * 3 * 2**29})
        self._config: Any = SimpleNamespace(parallel_config=parallel, kv_transfer_config=transfer)

    def take(self) -> None:
        take_memory({"layer": torch.zeros(1)}, 1, self._config)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("cudaHostRegister failed: cudaError.out_of_memory", r"cannot be pinned .*memory.*ulimit -l\)$"),
        (ALLOCATION, r"cannot be had: give less, .*ulimit -v\)$"),
    ],
    ids=["pinned", "had"],
)
def test_memory_that_is_refused_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, error: str, line: str) -> None:
    host = Host(monkeypatch, error)
    with pytest.raises(InputError, match=rf"^--kv-offloading-size: 1\.5 GiB .* {line}"):
        host.take()


def test_memory_that_is_not_free_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux would give it, and end a process when it is written to."""
    host = Host(monkeypatch, "it was asked", free_gib=1.4)
    with pytest.raises(InputError, match=r"^--kv-offloading-size: 1\.5 GiB .*, and 1\.4 GiB are free; give less$"):
        host.take()


def test_memory_is_checked_for_all_ranks_of_a_host_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All look before any takes its own: else the first ones find enough, and all are refused late or ended."""
    looked: list[str] = []
    group = SimpleNamespace(barrier=lambda: looked.append("all ranks"))
    monkeypatch.setattr("agentcache.engine.vllm.host_memory.get_world_group", lambda: group)
    host = Host(monkeypatch, "it was asked", free_gib=5.9, ranks=4)
    with pytest.raises(InputError, match=r"1\.5 GiB .* wanted for each of 4 ranks, and 5\.9 GiB are free; give less$"):
        host.take()
    assert looked == ["all ranks"]


def test_another_error_of_vllm_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch, "no such device")
    with pytest.raises(RuntimeError, match="no such device"):
        host.take()


def test_serve_ends_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's processes end, and vLLM says that there is a cause above."""
    host = Host(monkeypatch, ALLOCATION)

    def fail_to_start(_: Any) -> None:
        with suppress(InputError):
            host.take()
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
    refuse_start("too late")


BLOCKS, BLOCK_BYTES = 5, 8


def lay_out(layer_stride: int, block_stride: int, **layers: list[str]) -> tuple[torch.Tensor, KVCacheConfig]:
    """An allocation of bytes that count up, and a configuration of layers laid out in it."""
    memory = torch.arange(4 * BLOCKS * BLOCK_BYTES, dtype=torch.int16).to(torch.int8)
    tensors = [
        KVCacheTensor(memory.numel(), names, layer_stride, block_stride, offset=int(place.removeprefix("at")))
        for place, names in layers.items()
    ]
    return memory, KVCacheConfig(BLOCKS, tensors, [])


def test_blocks_of_a_layer_that_lie_together_are_a_piece() -> None:
    memory, config = lay_out(BLOCKS * BLOCK_BYTES, BLOCK_BYTES, at40=["one", "two"])
    pieces = find_pieces({"one": memory[40:80].view(torch.int32), "two": memory[80:120]}, config)
    assert [piece.shape for piece in pieces.values()] == [(BLOCKS, BLOCK_BYTES)] * 2
    assert [piece.data_ptr() - memory.data_ptr() for piece in pieces.values()] == [40, 80]


def test_parts_of_a_layer_that_lie_together_are_pieces() -> None:
    memory, config = lay_out(2 * BLOCKS * BLOCK_BYTES, BLOCK_BYTES, at0=["one"], at80=["two"])
    pieces = find_pieces({"one": memory[:80], "two": memory[80:]}, config)
    assert [piece.data_ptr() - memory.data_ptr() for piece in pieces.values()] == [0, 40, 80, 120]


def test_layers_of_a_block_that_lie_together_are_one_piece() -> None:
    memory, config = lay_out(BLOCK_BYTES, 4 * BLOCK_BYTES, at0=["one", "two"], at16=["three", "four"])
    (piece,) = find_pieces({"two": memory[8:], "three": memory[16:]}, config).values()
    assert torch.equal(piece, memory.view(BLOCKS, 4 * BLOCK_BYTES))


def test_layers_of_another_stage_are_left_out() -> None:
    memory, config = lay_out(BLOCKS * BLOCK_BYTES, BLOCK_BYTES, at0=["one"], at40=["elsewhere"])
    assert len(find_pieces({"one": memory}, config)) == 1


@pytest.mark.parametrize(("offset", "gap"), [("at150", 0), ("at0", 2)], ids=["beyond the memory", "gaps"])
def test_a_layout_of_another_kind_is_refused(offset: str, gap: int) -> None:
    memory, config = lay_out(BLOCKS * BLOCK_BYTES + gap, BLOCK_BYTES, **{offset: ["one", "two"]})
    with pytest.raises(ValueError, match="160 bytes, and its layout takes"):
        find_pieces({"one": memory}, config)


def test_the_host_has_as_large_blocks_in_as_many_pieces() -> None:
    on_gpu = {"one": torch.ones(BLOCKS, 8, dtype=torch.int8), "two": torch.ones(BLOCKS, 3, dtype=torch.int8)}
    on_host = make_host_pieces(on_gpu, 70)
    assert {name: tuple(piece.shape) for name, piece in on_host.items()} == {"one": (70, 8), "two": (70, 3)}
    assert not any(piece.any() for piece in on_host.values())
