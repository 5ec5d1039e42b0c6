"""The simulator and the real CPU engine, asked the same, find the same in the cache and lose the same from it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import zmq
from background_server import connect, serve_tiny
from eviction_log import EvictionLog, find_removed
from made_simulation import make_engine
from openai import OpenAI
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.v1.core.kv_cache_utils import ExternalBlockHash

BLOCK_SIZE = 32
CACHE_TOKENS = 1024
TURNS = 4
# No two runs take the same time, so it must not decide: with so long a lifespan cost does, and between equals the age.
TIMELESS = {"gpu": "cpu", "lifespan_s": 1e6, "lambda_limit": 1.0}


class Served(NamedTuple):
    """One request: the token ids of its prompt and its reply, and how many of the prompt's were cached."""

    prompt: list[int]
    reply: list[int]
    cached_tokens: int


def converse(client: OpenAI) -> list[Served]:
    """Three chats in turn, one request at a time."""
    chats: list[list[Any]] = [
        [{"role": "user", "content": f"Chat {chat}. " + f"word{chat} " * 60 * (chat + 1)}] for chat in range(3)
    ]
    served = []
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
            served.append(Served(prompt, reply, (details and details.cached_tokens) or 0))
            messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on. " * 12}]
    return served


def simulate(
    model_path: str, served: list[Served], policy: str, knobs: dict[str, Any]
) -> tuple[list[int | None], list[ExternalBlockHash]]:
    """The cached tokens of the same requests, and the evicted blocks."""
    engine = make_engine(model_path, policy, cache_tokens=CACHE_TOKENS, block_size=BLOCK_SIZE, knobs=knobs)
    log = EvictionLog(engine)
    cached = []
    for number, (prompt, reply, _) in enumerate(served):
        engine.add(str(number), prompt, reply)
        while not engine.idle:
            engine.clock.advance_to(engine.begin_step())
            cached += [times.cached_tokens for times in engine.end_step().finished]
    return cached, log.evicted


def read_batches(replay: str) -> Iterator[KVEventBatch]:
    """All events that the server has published so far."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(replay)
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        while (message := socket.recv_multipart())[2] != ZmqEventPublisher.END_SEQ:
            yield msgspec.msgpack.decode(message[3], type=KVEventBatch)


def read_evicted(replay: str, count: int) -> list[ExternalBlockHash]:
    """The blocks that the server evicted. It publishes behind its replies: `count` are waited for, but not for ever."""
    give_up = time.monotonic() + 10
    while True:
        evicted = [key for batch in read_batches(replay) for key in find_removed(batch.events)]
        if len(evicted) >= count or time.monotonic() > give_up:
            return evicted
        time.sleep(0.05)


@pytest.mark.parametrize(("policy", "knobs"), [("lru", {}), ("asymcache", TIMELESS)], ids=["lru", "asymcache"])
def test_cached_tokens_and_evicted_blocks_are_those_of_the_real_engine(
    policy: str, knobs: dict[str, Any], tiny_model_path: str, tmp_path: Path
) -> None:
    endpoint, replay = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"
    events = {"enable_kv_cache_events": True, "endpoint": endpoint, "replay_endpoint": replay}
    options = (
        *("--num-gpu-blocks-override", str(CACHE_TOKENS // BLOCK_SIZE + 1)),
        *("--max-model-len", str(CACHE_TOKENS)),
        *("--kv-events-config", json.dumps(events)),
        *("--additional-config", json.dumps({"agentcache": knobs})),
    )
    with serve_tiny(*options, policy=policy) as server, connect(server) as client:
        served = converse(client)
        cached, evicted = simulate(tiny_model_path, served, policy, knobs)
        measured = read_evicted(replay, len(evicted))
    assert cached == [request.cached_tokens for request in served]
    assert evicted == measured
    # The cache is too small for all, and large enough for some: else nothing was compared.
    later = cached[3:]
    assert len(later) == 9
    assert len(set(later)) > 2
    assert len(evicted) > CACHE_TOKENS // BLOCK_SIZE
