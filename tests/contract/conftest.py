from __future__ import annotations

import pytest
from lone_scheduler import LoneScheduler, make_config, make_scheduler
from stock import MakeStock
from vllm.config import VllmConfig


@pytest.fixture(scope="session")
def stock_config(tiny_model_path: str) -> VllmConfig:
    return make_config(tiny_model_path, None)


@pytest.fixture
def make_stock(stock_config: VllmConfig) -> MakeStock:
    """Makes vLLM's own asynchronous scheduler, with nothing of ours in it."""

    def make(blocks: int = 64, in_flight: int = 1) -> LoneScheduler:
        return LoneScheduler(make_scheduler(stock_config, blocks), in_flight)

    return make
