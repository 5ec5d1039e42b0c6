"""What a server records of requests over HTTP, and what is made of the recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from background_server import BLOCK, BLOCKS, SharedServer

from agentcache.engine.constants import REPLY_ARGUMENT
from agentcache.jobs.recorded_job import ReplyEncoder
from agentcache.jobs.settings import JobSettings
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.sim.command import simulate
from agentcache.sim.settings import SimulationSettings
from tool_runtime.agent.job import ToolCall, Turn

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("without_plots")]

_TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_TURNS = (Turn("I will look.", (ToolCall("look", '{"at": "tea"}'),)), Turn("It is tea."))


@pytest.mark.parametrize("policy", ["vllm", "agentcache"])
def test_requests_over_http_are_recorded_and_simulated(
    policy: str, shared_server: SharedServer, tiny_model_path: str, tmp_path: Path
) -> None:
    path = tmp_path / "traffic.jsonl"
    record = {"file": str(path), "tool_names": True}
    tuning = {"record_block_tokens": 2 * BLOCK}
    shared_server.use(policy, record=record, runtime={"tool_parser": "hermes"}, tuning=tuning)
    _converse(shared_server, ReplyEncoder(LocalTokenizer(tiny_model_path)))
    # The recording is complete when its scheduler is gone.
    shared_server.use("lru")
    text = path.read_text()
    assert "tea" not in text
    assert "my session" not in text
    first, second = map(json.loads, text.splitlines())
    assert first["recording"]["policy"] == policy
    assert (first["end"], first["called"], second["end"]) == ("calls", ["look"], "answer")
    assert first["session"] == second["session"]
    assert second["hash_ids"][: len(first["hash_ids"]) - 1] == first["hash_ids"][:-1]
    assert 0 < first["ttft_ms"] <= first["latency_ms"]
    assert second["timestamp"] >= first["timestamp"] + first["latency_ms"]
    settings = SimulationSettings(
        command="agentcache simulate ...",
        jobs=JobSettings(workload=f"recording:{path}"),
        out=tmp_path / "run",
        overwrite=False,
        policies=(policy,),
        model="tiny",
        gpu="cpu",
        kv_tokens=BLOCK * BLOCKS,
        block_size=BLOCK,
    )
    status, summary = simulate(settings)
    assert status == 0
    assert summary.policies[policy].token_hit_rate == pytest.approx(
        second["cached_length"] / (first["input_length"] + second["input_length"])
    )


def _converse(server: SharedServer, encoder: ReplyEncoder) -> None:
    chat: list[Any] = [{"role": "system", "content": "Be brief. " * 40}, {"role": "user", "content": "What is tea?"}]
    for turn in _TURNS:
        reply = server.client.chat.completions.create(
            model="tiny",
            messages=chat,
            tools=[_TOOL],
            extra_body={
                "session_id": "my session",
                "vllm_xargs": {REPLY_ARGUMENT: encoder.encode(turn)},
            },
        )
        message = reply.choices[0].message
        chat.append(message.model_dump(exclude_none=True))
        chat += [{"role": "tool", "tool_call_id": call.id, "content": "tea"} for call in message.tool_calls or ()]
