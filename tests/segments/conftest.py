from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from live_engine import ColdEngine, LiveEngine

# Options of `LiveEngine.use`, which a running engine takes; all others make another engine.
OF_THE_POLICY = {"policy", "segments", "tuning", "look_s"}
TakeEngine = Callable[..., LiveEngine]


@pytest.fixture(scope="session")
def cold(tiny_model_path: str) -> LiveEngine:
    return ColdEngine(tiny_model_path)


@pytest.fixture(scope="session")
def take_engine(tiny_model_path: str, cold: LiveEngine) -> TakeEngine:  # noqa: ARG001 (made first)
    """An engine with these options that is as if just started; there is one for each set of vLLM's options."""
    engines: dict[str, LiveEngine] = {}

    def take(**options: Any) -> LiveEngine:
        ours = {name: options.pop(name) for name in OF_THE_POLICY & options.keys()}
        key = repr(sorted(options.items()))
        if key not in engines:
            engines[key] = LiveEngine(tiny_model_path, **options)
        engines[key].use(**ours)
        return engines[key]

    return take
