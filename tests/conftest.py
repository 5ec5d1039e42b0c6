from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def tiny_model_path() -> str:
    """The folder of the model `tiny`, from the user's own cache: making it takes seconds."""
    from agentcache.models.catalog import resolve_model

    return resolve_model("tiny").path
