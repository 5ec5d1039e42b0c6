"""A server that is paused, as between rollouts: requests wait, and its other routes answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from background_server import BLOCK, SharedServer
from live_engine import make_prompt

pytestmark = pytest.mark.engine

PROMPT, LONG = make_prompt(1, 9 * BLOCK), make_prompt(2, 3 * BLOCK)
TOKENS = 400


def ask(server: SharedServer, prompt: list[int], tokens: int, **options: Any) -> Any:
    body = {"ignore_eos": True, "return_token_ids": True, **options}
    return server.client.completions.create(
        model="tiny", prompt=prompt, max_tokens=tokens, temperature=0, extra_body=body
    )


def test_requests_of_a_paused_server_go_on_when_it_resumes(shared_server: SharedServer) -> None:
    shared_server.use("agentcache")
    engine = shared_server.embedded.engine
    expected = [
        ask(shared_server, prompt, tokens).choices[0].token_ids for prompt, tokens in ((LONG, TOKENS), (PROMPT, 4))
    ]
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(ask, shared_server, LONG, TOKENS, session_id="running")
        while not shared_server.read_state()["requests"]["running"]:
            assert not running.done()
        shared_server.run(engine.pause_generation(mode="keep", clear_cache=True))
        waiting = threads.submit(ask, shared_server, PROMPT, 4, session_id="waiting")
        while not shared_server.read_state()["requests"]["waiting"]:
            assert not waiting.done()
        assert not running.done()
        shared_server.run(engine.resume_generation())
        answers = [running.result(), waiting.result()]
    assert [answer.choices[0].token_ids for answer in answers] == expected
    assert waiting.result().usage.prompt_tokens_details.cached_tokens == 0
