from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from agentcache.engine.report_address import find_report_url

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
        # Known when the server has one.
        ({"port": 0}, None, None),
        ({"headless": True}, None, None),
        ({"api_server_count": None}, None, "http://127.0.0.1:8000/here/agentcache/report"),
        ({"api_server_count": 0}, None, None),
    ],
)
def test_a_browser_is_sent_where_it_can_give_the_key(
    changes: dict[str, Any], key: str | None, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "theirs,agentcache")
    monkeypatch.setenv("VLLM_API_KEY", key or "")
    assert find_report_url(Namespace(**SERVER | changes)) == url


def test_only_a_server_with_our_routes_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "agentcache")
    # Another command's, as of vLLM's run-batch.
    assert find_report_url(Namespace(host=None, port=8000)) is None
    assert find_report_url(Namespace(**SERVER)) is not None
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    assert find_report_url(Namespace(**SERVER)) is None
    monkeypatch.delenv("VLLM_USE_RUST_FRONTEND")
    monkeypatch.delenv("VLLM_PLUGINS")
    assert find_report_url(Namespace(**SERVER)) is None
