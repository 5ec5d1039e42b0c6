"""The simulator and the real CPU engine, asked the same, find the same in the cache."""

from __future__ import annotations

from typing import Any

from background_server import connect, serve_tiny
from made_simulation import make_engine

BLOCK_SIZE = 32
CACHE_TOKENS = 1024
TURNS = 4


def converse() -> list[tuple[list[int], list[int], int]]:
    """Three chats in turn, one request at a time: prompt, reply and cached tokens of each, from the real engine."""
    chats: list[list[Any]] = [
        [{"role": "user", "content": f"Chat {chat}. " + f"word{chat} " * 60 * (chat + 1)}] for chat in range(3)
    ]
    options = ("--num-gpu-blocks-override", str(CACHE_TOKENS // BLOCK_SIZE + 1), "--max-model-len", str(CACHE_TOKENS))
    served = []
    with serve_tiny(*options, policy="lru") as server, connect(server) as client:
        for _ in range(TURNS):
            for messages in chats:
                answer = client.chat.completions.create(
                    model="tiny",
                    messages=messages,
                    temperature=0,
                    max_completion_tokens=40,
                    extra_body={"ignore_eos": True, "return_token_ids": True},
                )
                details = answer.usage.prompt_tokens_details if answer.usage else None
                prompt = (answer.model_extra or {})["prompt_token_ids"]
                reply = (answer.choices[0].model_extra or {})["token_ids"]
                served.append((prompt, reply, (details and details.cached_tokens) or 0))
                messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on. " * 12}]
    return served


def test_cached_tokens_of_every_request_are_those_of_the_real_engine(tiny_model_path: str) -> None:
    served = converse()
    assert len(served) == 12
    engine = make_engine(tiny_model_path, "lru", cache_tokens=CACHE_TOKENS, block_size=BLOCK_SIZE)
    simulated = []
    for number, (prompt, reply, _) in enumerate(served):
        engine.add(str(number), prompt, reply)
        while not engine.idle:
            engine.clock.advance_to(engine.begin_step())
            simulated += [times.cached_tokens for times in engine.end_step().finished]
    measured = [cached for *_, cached in served]
    assert simulated == measured
    # The cache is too small for all, and large enough for some: else nothing was compared.
    assert len(set(measured[3:])) > 2
    assert min(measured[3:]) < max(measured[3:])
