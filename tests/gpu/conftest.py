"""What needs an NVIDIA GPU: `make test-gpu`, which `make test` leaves out."""

from __future__ import annotations

import pytest
import torch


def pytest_configure() -> None:
    if not torch.cuda.is_available():
        pytest.exit("tests/gpu: no NVIDIA GPU here; where there is one, `make test-gpu ENGINE=cuda` runs them", 2)
