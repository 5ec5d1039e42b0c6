"""Fill rows are the engine's own: neither clients, metrics nor logs show them."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Iterator

import httpx
import pytest
from background_server import BLOCK, SharedServer
from forgetful_scheduler import FORGET

pytestmark = pytest.mark.engine

FORGOTTEN = 3
PROMPT = random.Random(1).choices(range(8000), k=20 * BLOCK + 7)
ISLAND = (20 - FORGOTTEN) * BLOCK


def read_metrics(url: str) -> dict[str, float]:
    """By name; what differs in labels only is added up."""
    found: dict[str, float] = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if match := re.match(r"(vllm:\w+)(?:\{.*\})? (\S+)$", line):
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


class LogText(logging.Handler):
    """Lines of this process. What vLLM's own handler writes goes where its first test was captured."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"


@pytest.fixture
def log(shared_server: SharedServer) -> Iterator[LogText]:  # noqa: ARG001 (vLLM sets its logging up when it loads)
    text, logger = LogText(), logging.getLogger("vllm")
    logger.addHandler(text)
    yield text
    logger.removeHandler(text)


def test_nobody_sees_fill_rows_over_http(shared_server: SharedServer, log: LogText) -> None:
    shared_server.use("asymcache", tuning={"row_s": 0.0})
    before = read_metrics(shared_server.url)
    cached = []
    for _ in range(3):
        answer = shared_server.client.completions.create(
            model="tiny",
            prompt=PROMPT,
            max_tokens=5,
            temperature=0,
            extra_body={"ignore_eos": True, "vllm_xargs": {FORGET: FORGOTTEN}},
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(PROMPT)
        details = answer.usage.prompt_tokens_details
        cached.append((details and details.cached_tokens) or 0)
    # vLLM counts behind its replies.
    give_up = time.monotonic() + 60
    after = read_metrics(shared_server.url)
    while after["vllm:prefix_cache_queries_total"] - before["vllm:prefix_cache_queries_total"] < 3 * len(PROMPT):
        assert time.monotonic() < give_up
        time.sleep(0.5)
        after = read_metrics(shared_server.url)
    counted = {name: value - before[name] for name, value in after.items()}
    # Nothing could be hit without a fill row: the first blocks are forgotten after each.
    assert cached == [0, ISLAND, ISLAND]
    assert counted["vllm:prefix_cache_queries_total"] == 3 * len(PROMPT)
    assert counted["vllm:prefix_cache_hits_total"] == 2 * ISLAND
    assert counted["vllm:prompt_tokens_total"] == 3 * len(PROMPT)
    assert counted["vllm:generation_tokens_total"] == 3 * 5
    assert counted["vllm:request_success_total"] == 3
    assert after["vllm:num_requests_running"] == 0
    assert after["vllm:num_requests_waiting"] == 0
    assert counted["vllm:e2e_request_latency_seconds_count"] == 3
    engine_log = shared_server.log.read_text()
    assert "Received request" in log.text, "requests are logged, so that a fill row could be"
    assert "EngineCore" in engine_log, "the engine's own process writes here"
    assert "fill-" not in log.text + engine_log
