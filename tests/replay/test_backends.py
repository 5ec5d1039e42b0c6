"""When an embedded engine is started, when it takes the next policy, and when it is given up."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_server import FakeServer, encode, render
from made_settings import make_settings
from made_simulation import make_engine

from agentcache.errors import InputError, ServerError
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.models.catalog import resolve_model
from agentcache.replay import command
from agentcache.replay.backends import EmbeddedBackend, ExternalBackend
from agentcache.replay.endpoint import CacheFacts, Endpoint
from agentcache.report.events import PolicyEvent, RequestEvent, read_events
from agentcache.run import layer_groups
from tool_runtime.agent.job import Message

POLICIES = ("asymcache", "vllm", "lru")


class FakeEngines:
    """What is done to the engines, in order; `refused` are policies that a running engine does not take."""

    vllm_config = SimpleNamespace(
        use_v2_model_runner=False, parallel_config=SimpleNamespace(world_size=1, data_parallel_size=1)
    )

    def __init__(self, server: FakeServer) -> None:
        self.url = server.url.removesuffix("/v1")
        self.startup_s = 21.0
        self.log: list[str] = []
        self.refused: set[str] = set()

    @asynccontextmanager
    async def run(self, args: Namespace) -> AsyncIterator[FakeEngines]:
        self.log.append(f"start {args.additional_config['agentcache']['policy']}")
        try:
            yield self
        finally:
            self.log.append("stop")

    async def use_policy(self, config: Mapping[str, Any]) -> None:
        if config["policy"] in self.refused:
            raise ServerError("there are unfinished requests")
        self.log.append(f"switch {config['policy']}, max_gaps {config['tuning']['max_gaps']}")


@pytest.fixture
def engines(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeEngines:
    fake = FakeEngines(server)
    monkeypatch.setattr("agentcache.server.embedded.run_embedded_server", fake.run)
    return fake


def make_backend(out: Path) -> EmbeddedBackend:
    return EmbeddedBackend(make_settings(out, model="tiny", policies=POLICIES, knobs={"tuning": {"max_gaps": 3}}))


@pytest.mark.parametrize(
    ("model", "tokens", "block_size"),
    [("llama-3.1-8b", 200_000, 32), ("gemma-3-12b", 200_000, 32), ("qwen3.5-9b", 300_000, 528), ("tiny", 4_000, 32)],
)
def test_a_cache_is_as_large_as_the_simulated_one(tmp_path: Path, model: str, tokens: int, block_size: int) -> None:
    """Windows hold less than what they belong to, and blocks are as long as a state: both change their number."""
    name = model if model == "tiny" else f"shape:{model}"
    # A window holds what a step computes, too.
    options = ("--max-num-batched-tokens", "4096")
    settings = make_settings(tmp_path, model=name, policies=POLICIES, kv_tokens=tokens, engine_options=options)
    backend = EmbeddedBackend(settings)
    arguments = backend._arguments("lru")
    shape = {"block_size": 32, "cache_tokens": tokens, "max_num_seqs": 128, "max_num_batched_tokens": 4096}
    simulated = make_engine(resolve_model(name).path, **shape)
    assert backend.cache_tokens == simulated.cache_tokens == tokens // block_size * block_size
    blocks = simulated.scheduler.kv_cache_config.num_blocks
    assert arguments.num_gpu_blocks_override == blocks


def test_a_cache_in_tokens_of_an_unknown_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise InputError("the model's config (X) has no ssm_state_size")

    monkeypatch.setattr(layer_groups, "make_layer_groups", refuse)
    with pytest.raises(InputError, match=r"--kv-tokens 4000: the model's config \(X\) has no ssm_state_size; leave it"):
        EmbeddedBackend(make_settings(tmp_path, model="tiny", policies=POLICIES, kv_tokens=4_000))


class ServersTokenizer(LocalTokenizer):
    """The fake server's, here."""

    def __init__(self, model_path: str) -> None:
        self.path = model_path

    def render(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, for_reply: bool) -> list[int]:
        return encode(render(messages, tools or None, for_reply=for_reply))


def test_jobs_are_written_without_asking_the_server(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("agentcache.replay.backends.LocalTokenizer", ServersTokenizer)
    backend = ExternalBackend(make_settings(tmp_path, base_url=server.url, tokenizer="served"))
    assert isinstance(backend.tokenizer, ServersTokenizer)
    assert backend.tokenizer.path == "served"


def test_another_models_tokenizer_is_refused(server: FakeServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"--tokenizer tiny: the server at {server.url} has another tokenizer; leave"):
        ExternalBackend(make_settings(tmp_path, base_url=server.url, tokenizer="tiny"))


async def open_all(backend: EmbeddedBackend, broken: str | None = None) -> list[float | None]:
    """The start-up times of those that could be opened."""
    found = []
    async with aclosing(backend):
        for policy in backend.policies:
            try:
                async with backend.open(policy) as target:
                    found.append(target.startup_s)
                    if policy == broken:
                        raise ServerError("the server is gone")
            except ServerError:
                assert policy == broken
    return found


def test_one_engine_serves_all_policies(server: FakeServer, engines: FakeEngines, tmp_path: Path) -> None:
    backend = make_backend(tmp_path)
    assert asyncio.run(open_all(backend)) == [21.0, None, None]
    assert engines.log == ["start asymcache", "switch vllm, max_gaps 3", "switch lru, max_gaps 3", "stop"]
    assert len(server.bodies) == 3, "each policy begins with the same request, which warms it"
    assert any("its cache empty" in note for note in backend.notes)


def test_the_policy_after_a_broken_engine_gets_a_fresh_one(engines: FakeEngines, tmp_path: Path) -> None:
    assert asyncio.run(open_all(make_backend(tmp_path), broken="asymcache")) == [21.0, 21.0, None]
    assert engines.log == ["start asymcache", "stop", "start vllm", "switch lru, max_gaps 3", "stop"]


def test_a_policy_that_the_engine_does_not_take_gets_a_fresh_one(engines: FakeEngines, tmp_path: Path) -> None:
    engines.refused.add("vllm")
    assert asyncio.run(open_all(make_backend(tmp_path))) == [21.0, 21.0, None]
    assert engines.log == ["start asymcache", "stop", "start vllm", "switch lru, max_gaps 3", "stop"]


def test_an_engine_that_does_not_serve_is_the_servers_failure(
    server: FakeServer, engines: FakeEngines, tmp_path: Path
) -> None:
    server.follows_replies = False

    async def open_first() -> None:
        async with make_backend(tmp_path).open("asymcache"):
            pass

    with pytest.raises(ServerError, match="the engine does not serve"):
        asyncio.run(open_first())
    assert engines.log == ["start asymcache", "stop"]


class TwoPolicies(ExternalBackend):
    policies = ("fragile", "sound")
    closed = 0

    async def aclose(self) -> None:
        type(self).closed += 1


def test_a_server_lost_under_one_policy_leaves_the_next_its_run(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[Endpoint] = []

    def lose_server_once(endpoint: Endpoint) -> CacheFacts:
        # Asked before the preparation, then before and after each policy.
        asked.append(endpoint)
        if len(asked) == 3:
            raise ServerError("the server is gone")
        return CacheFacts(16, None, preemptions=10 * len(asked))

    monkeypatch.setattr(Endpoint, "read_cache_facts", lose_server_once)
    monkeypatch.setattr(command, "ExternalBackend", TwoPolicies)
    out = tmp_path / "out"
    status, summary = command.replay(make_settings(out, base_url=server.url, jobs=2))
    assert (status, TwoPolicies.closed) == (1, 1)
    assert "fragile: the server is gone; see" in capfd.readouterr().out
    assert [(figures.jobs, figures.finished) for figures in summary.policies.values()] == [(2, 2), (2, 2)]
    events = list(read_events(out))
    assert {event.policy for event in events if isinstance(event, RequestEvent)} == set(TwoPolicies.policies)
    # Counted since the server started, reported since the policy began.
    ends = [event for event in events if isinstance(event, PolicyEvent)]
    assert [(end.policy, end.preemptions) for end in ends] == [("sound", 10)]
