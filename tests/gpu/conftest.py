"""What needs an NVIDIA GPU: `make test-gpu`, which `make test` leaves out."""

from __future__ import annotations

import pytest
import torch
from live_engine import LiveEngine, make_prompt
from served import MARGIN, SERVED, find_distance

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
    """The most that a token's logprob may differ: what stock vLLM's own batches make, times the margin."""
    prompts = [make_prompt(seed, tokens=100 + 70 * seed) for seed in range(12)]
    alone = [cold.ask(prompt, 24) for prompt in prompts]
    names = [cold.add(prompt, 24) for prompt in prompts]
    cold.finish()
    own = max(find_distance(cold.reply(name), reply) for name, reply in zip(names, alone, strict=True))
    assert own < 0.1, "the kernels do not repeat themselves well enough for this test"
    return MARGIN * max(own, 0.005)
