from __future__ import annotations

from collections.abc import Iterator

import pytest
from loaded_tokenizers import load_tokenizers_once


@pytest.fixture(autouse=True, scope="module")
def _tokenizers() -> Iterator[None]:
    with load_tokenizers_once():
        yield
