"""What needs an NVIDIA GPU: `make test-gpu`, which `make test` leaves out."""

from __future__ import annotations

import pytest
import torch
from live_engine import LiveEngine
from served import SERVED, find_tolerance

from agentcache.models.catalog import resolve_model


def pytest_configure() -> None:
    if not torch.cuda.is_available():
        pytest.exit("tests/gpu: no NVIDIA GPU here; where there is one, `make test-gpu ENGINE=cuda` runs them", 2)


@pytest.fixture(scope="session")
def model() -> str:
    return resolve_model("demo").path


@pytest.fixture(scope="session")
def cold(model: str) -> LiveEngine:
    """The oracle: stock vLLM that computes every prompt."""
    return LiveEngine(model, scheduler=None, enable_prefix_caching=False, **SERVED)


@pytest.fixture(scope="session")
def tolerance(cold: LiveEngine) -> float:
    return find_tolerance(cold)
