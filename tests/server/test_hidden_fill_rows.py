"""Fill rows are the engine's own: neither clients, metrics nor logs show them."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterator

import httpx
import pytest
from background_server import connect, serve_tiny
from forgetful_scheduler import FORGOTTEN

BLOCK = 32
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
    """Lines of this process. What vLLM's own handler writes goes where the first engine's test was captured."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"


@pytest.fixture
def log() -> Iterator[LogText]:
    text, logger = LogText(), logging.getLogger("vllm")
    logger.addHandler(text)
    yield text
    logger.removeHandler(text)


def test_nobody_sees_fill_rows_over_http(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], log: LogText
) -> None:
    monkeypatch.setattr("agentcache.server.arguments.SCHEDULER_CLASS", "forgetful_scheduler.ForgetfulScheduler")
    segments = '{"agentcache": {"segments": {"row_s": 0.0}}}'
    options = ("--max-model-len", "1024", "--additional-config", segments, "--enable-log-requests")
    with serve_tiny(*options, policy="asymcache", forced_replies=False) as server:
        client = connect(server)
        cached = []
        for _ in range(3):
            answer = client.completions.create(
                model="tiny", prompt=PROMPT, max_tokens=5, temperature=0, extra_body={"ignore_eos": True}
            )
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == len(PROMPT)
            details = answer.usage.prompt_tokens_details
            cached.append((details and details.cached_tokens) or 0)
        metrics = read_metrics(server.url)
    # Nothing could be hit without a fill row: the first blocks are forgotten after each.
    assert cached == [0, ISLAND, ISLAND]
    assert metrics["vllm:prefix_cache_queries_total"] == 3 * len(PROMPT)
    assert metrics["vllm:prefix_cache_hits_total"] == 2 * ISLAND
    assert metrics["vllm:prompt_tokens_total"] == 3 * len(PROMPT)
    assert metrics["vllm:generation_tokens_total"] == 3 * 5
    assert metrics["vllm:request_success_total"] == 3
    assert metrics["vllm:num_requests_running"] == 0
    assert metrics["vllm:num_requests_waiting"] == 0
    assert metrics["vllm:e2e_request_latency_seconds_count"] == 3
    captured = capfd.readouterr()
    assert "Received request" in log.text, "requests are logged, so that a fill row could be"
    assert "EngineCore" in captured.out + captured.err, "the engine's own process writes here"
    assert "fill-" not in log.text + captured.out + captured.err
