"""The copier with its GPU played by the CPU: which blocks go from where to where."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from agentcache.profile import gpu_copier
from agentcache.profile.gpu_copier import GpuCopier

BLOCKS = 16
LAYOUT = {"pieces": 3, "piece_bytes": 8}


class FakeStream:
    """Notes how often it is waited for."""

    waits = 0

    def synchronize(self) -> None:
        FakeStream.waits += 1


class FakeTorch:
    """PyTorch without a device."""

    int8 = torch.int8

    class cuda:  # noqa: N801 (torch.cuda)
        Stream = FakeStream

        @staticmethod
        def synchronize() -> None:
            """Nothing runs late here."""

    @staticmethod
    def zeros(shape: tuple[int, int], dtype: torch.dtype, device: str = "cpu") -> torch.Tensor:
        assert device in ("cpu", "cuda")
        return torch.zeros(shape, dtype=dtype)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []

    def copy_blocks(sources: list[int], targets: list[int], params: tuple[Any, Any, Any]) -> None:
        for source, target in zip(params[0].values(), params[1].values(), strict=True):
            target[targets] = source[sources]

    monkeypatch.setattr(gpu_copier, "torch", FakeTorch)
    monkeypatch.setattr(gpu_copier, "pin_tensor", tensors.append)
    monkeypatch.setattr(gpu_copier, "build_params", lambda *params: params)
    monkeypatch.setattr(gpu_copier, "copy_blocks", copy_blocks)
    FakeStream.waits = 0
    return tensors


def fill(tensors: dict[str, torch.Tensor], value: int) -> None:
    for tensor in tensors.values():
        tensor.fill_(value)


def count_blocks(tensors: dict[str, torch.Tensor], value: int) -> list[int]:
    """Count the blocks that hold the value, in each layer."""
    return [int((tensor == value).all(dim=1).sum()) for tensor in tensors.values()]


@pytest.mark.parametrize("blocks", [1, 5, BLOCKS])
def test_so_many_blocks_of_every_layer_go_each_way(pinned: list[torch.Tensor], blocks: int) -> None:
    copier = GpuCopier(BLOCKS, **LAYOUT)
    on_gpu, on_host = copier._caches
    assert [tensor.shape for tensor in on_gpu.values()] == [(BLOCKS, 8)] * 3
    # What is not pinned is not copied by itself.
    assert [id(tensor) for tensor in pinned] == [id(tensor) for tensor in on_host.values()]
    fill(on_gpu, 1)
    fill(on_host, 2)
    copier.fetch(blocks)
    assert (count_blocks(on_gpu, 2), count_blocks(on_host, 2)) == ([blocks] * 3, [BLOCKS] * 3)
    fill(on_gpu, 1)
    copier.store(blocks)
    assert (count_blocks(on_gpu, 1), count_blocks(on_host, 1)) == ([BLOCKS] * 3, [blocks] * 3)


def test_places_do_not_follow_one_another(pinned: list[torch.Tensor]) -> None:  # noqa: ARG001 (the fake GPU)
    order = GpuCopier(4096, **LAYOUT)._order
    assert sorted(order) == list(range(4096))
    assert sum(after - before == 1 for before, after in pairwise(order)) < 10


def test_both_directions_are_waited_for(pinned: list[torch.Tensor]) -> None:  # noqa: ARG001 (the fake GPU)
    GpuCopier(BLOCKS, **LAYOUT).wait()
    assert FakeStream.waits == 2
