from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_server import FakeServer, run_fake_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with run_fake_server() as fake:
        yield fake
