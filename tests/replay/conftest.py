from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# With --import-mode=importlib a test folder is on no path, and the helper modules here would not be found.
sys.path.insert(0, str(Path(__file__).parent))

from fake_server import FakeServer, run_fake_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with run_fake_server() as fake:
        yield fake
