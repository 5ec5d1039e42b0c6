from __future__ import annotations

import pytest
from live_engine import LiveEngine


@pytest.fixture(scope="session")
def cold(tiny_model_path: str) -> LiveEngine:
    """The oracle: stock vLLM that computes every prompt."""
    return LiveEngine(tiny_model_path, scheduler=None, enable_prefix_caching=False)
