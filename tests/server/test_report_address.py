from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from agentcache.server.address import write_report_url

SERVER = {
    "headless": False,
    "api_server_count": 1,
    "uds": None,
    "host": None,
    "port": 8000,
    "ssl_certfile": None,
    "root_path": "/here",
    "api_key": None,
}


@pytest.mark.parametrize(
    ("changes", "key", "url"),
    [
        ({}, None, "http://127.0.0.1:8000/here/agentcache/report"),
        ({"api_key": ["k"]}, None, "http://127.0.0.1:8000/here/agentcache-live"),
        ({}, "k", "http://127.0.0.1:8000/here/agentcache-live"),
        ({"host": "::1", "ssl_certfile": "x"}, None, "https://[::1]:8000/here/agentcache/report"),
        ({"uds": "socket"}, "k", None),
    ],
)
def test_a_browser_is_sent_where_it_can_give_the_key(
    changes: dict[str, Any], key: str | None, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", key or "")
    found = write_report_url(Namespace(**SERVER | changes))
    assert found == url
