from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest
from hand_clock import Clock
from kept_objects import list_kept
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest

from agentcache.config import AgentCacheConfig
from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.engine.constants import ANSWER_MARK, RELEASE_METHOD, SCHEDULER_CLASS
from agentcache.front_end import placing_client
from agentcache.front_end.placement_process import JobPlaces
from agentcache.front_end.placer import Placer
from agentcache.front_end.placing_client import (
    PlacingClient,
    _make_release,
    _plan_placement,
    keeps_jobs_home,
    place_requests,
)
from agentcache.front_end.shared_placement import Rejoining, SharedPlacement
from agentcache.policy.price import RecomputeCost
from agentcache.policy.replicas.engine_load import HostMemory, PrefillCost
from agentcache.policy.replicas.job_homes import JobHome
from agentcache.policy.replicas.placement import Placed

BLOCK = 4
COST = PrefillCost(RecomputeCost(slope_s=0.0, base_s=1.0, floor_s=1e-9), BLOCK)
ENGINES = [b"\x00\x00", b"\x01\x00"]


def make_request(name: str, tokens: list[int], **fields: Any) -> EngineCoreRequest:
    found: dict[str, Any] = {
        "mm_features": None,
        "sampling_params": SamplingParams(),
        "pooling_params": None,
        "arrival_time": 0.0,
        "lora_request": None,
        "cache_salt": None,
        "data_parallel_rank": None,
    }
    return EngineCoreRequest(name, tokens, **{**found, **fields})


def make_placer(released: list[tuple[int, str, str | None]] | None = None) -> Placer:
    placement = JobPlaces(2, capacity_tokens=4000, prefill_cost=COST)
    told: list[tuple[int, str, str | None]] = [] if released is None else released
    return Placer(placement, lambda *job: told.append(job), clock=lambda: 0.0)


def make_client(placer: Placer | None) -> PlacingClient:
    """vLLM's own client as far as it chooses engines, without engines."""
    client = object.__new__(PlacingClient)
    client.client_count, client.eng_start_index = 1, 0
    client.core_engines, client.engine_inflight, client.reqs_in_flight = list(ENGINES), Counter(), {}
    client.engine_ranks_managed = [0, 1]
    client.streaming_reqs = set()  # Since vLLM 0.33.
    # Waiting requests, running ones, usage of the cache: the first engine looks full.
    client.lb_engines = [[50, 50, 1.0], [0, 0, 0.0]]
    client.placer = placer
    return client


def finish(client: PlacingClient, request: str, reply: list[int], *marked: str) -> None:
    outputs = EngineCoreOutputs(outputs=[EngineCoreOutput(request, reply)], finished_requests={request, *marked})
    asyncio.run(type(client).process_engine_outputs(client, outputs))


def test_turns_of_a_session_come_to_one_engine() -> None:
    client = make_client(make_placer())
    first = client.get_core_engine_for_request(make_request("1", [1] * 40, session_id="one"))
    # By vLLM's own counts the other engine is always the better one.
    client.lb_engines = [[50, 50, 1.0], [50, 50, 1.0]]
    client.lb_engines[1 - ENGINES.index(first)] = [0, 0, 0.0]
    finish(client, "1", [7] * 8)
    assert client.get_core_engine_for_request(make_request("2", [2] * 400, session_id="one")) == first
    assert client.engine_inflight[first] == 1


def test_turns_without_a_session_come_to_one_engine() -> None:
    placer = make_placer()
    client = make_client(placer)
    first = client.get_core_engine_for_request(make_request("1", [1] * 40))
    client.get_core_engine_for_request(make_request("2", [9] * 400, session_id="other"))
    finish(client, "1", [7] * 8)
    again = make_request("3", [1] * 40 + [7] * 8 + [3] * 9)
    assert client.get_core_engine_for_request(again) == first
    assert placer.placement.placed == {"new": 2, "home": 1}


def test_a_job_that_its_engine_calls_answered_leaves_the_load() -> None:
    placer = make_placer()
    client = make_client(placer)
    for request, mark in (("1", []), ("2", ["2" + ANSWER_MARK])):
        client.get_core_engine_for_request(make_request(request, [1] * 40, session_id="one"))
        finish(client, request, [7] * 8, *mark)
        assert sum(load.live_tokens for load in placer.placement.loads) == (0 if mark else 48)
    assert (client.reqs_in_flight, sum(client.engine_inflight.values())) == ({}, 0), "vLLM passes over the mark"


def test_tenants_and_adapters_do_not_share_a_chain() -> None:
    placer = make_placer()
    client = make_client(placer)
    client.get_core_engine_for_request(make_request("1", [1] * 40))
    finish(client, "1", [7] * 8)
    client.get_core_engine_for_request(make_request("2", [1] * 40 + [7] * 8, cache_salt="tenant"))
    assert placer.placement.placed == {"new": 2}


def test_without_a_placer_vllm_balances() -> None:
    client = make_client(None)
    assert client.get_core_engine_for_request(make_request("1", [1] * 40, session_id="one")) == ENGINES[1]


@pytest.mark.parametrize(
    "fields",
    [{"data_parallel_rank": 0}, {"sampling_params": None}, {"resumable": True}],
    ids=["names its engine", "pools", "streams input"],
)
def test_a_request_that_is_nobodys_turn_is_left_to_vllm(fields: dict[str, Any]) -> None:
    placer = make_placer()
    assert placer.choose(make_request("1", [1] * 40, **fields)) is None
    assert placer.placement.placed == {}


def test_what_a_moved_job_leaves_is_released_there() -> None:
    released: list[tuple[int, str, str | None]] = []
    placer = make_placer(released)
    named = placer.choose(make_request("1", [1] * 40, session_id="one", cache_salt="tenant"))
    assert named is not None
    client = make_client(placer)
    finish(client, "1", [7] * 8)
    placer.placement.loads[named].queue("crowd", 1000.0)
    assert placer.choose(make_request("2", [1] * 40, session_id="one", cache_salt="tenant")) == 1 - named
    assert released == [(named, "one", "tenant")]


def test_a_release_names_the_one_engine() -> None:
    calls: list[tuple[Any, ...]] = []

    class Core:
        engine_ranks_managed = (2, 3)

        async def call_utility_all_async(self, *args: Any) -> None:
            calls.append(args)

    async def release() -> None:
        core: Any = Core()
        _make_release(core)(1, "one", None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(release())
    assert calls == [(RELEASE_METHOD, "one", [None], 3)]


def test_a_session_that_is_over_is_forgotten() -> None:
    placer = make_placer()
    placer.choose(make_request("1", [1] * 40, session_id="one"))
    home = placer.find("one", None)
    assert home is not None
    assert (home.moves, home.reason) == (0, "new")
    placer.end_session("one", ["another tenant"])
    assert placer.find("one", None) is home
    placer.end_session("one", None)
    assert placer.find("one", None) is None


def finish_turn(placer: Placer, name: str, prompt: list[int], **fields: Any) -> JobHome:
    """`name` as the engine has it: the id that the client gets, and a suffix. Returns where its job lives."""
    placer.choose(make_request(name, prompt, **fields))
    placer.note(EngineCoreOutputs(outputs=[EngineCoreOutput(name, [7] * 8)], finished_requests={name}))
    home = placer.find(name.rpartition("-")[0], None)
    assert home is not None
    return home


@pytest.mark.parametrize("fields", [{}, {"session_id": "one"}, {"session_id": "one", "cache_salt": "tenant"}])
def test_a_job_is_named_by_any_of_its_replies(fields: dict[str, Any]) -> None:
    placer = make_placer()
    first = finish_turn(placer, "chatcmpl-a-1f", [1] * 40, **fields)
    assert finish_turn(placer, "chatcmpl-b-2e", [1] * 40 + [7] * 8 + [3] * 9, **fields) is first
    other = finish_turn(placer, "chatcmpl-c-3d", [9] * 40)
    placer.end_session("chatcmpl-a", None)
    assert placer.placement.find(first.job) is None
    assert (placer.find("chatcmpl-a", None), placer.find("chatcmpl-b", None)) == (None, None)
    # Its load is gone with it, and the next turn is a new job's.
    assert sum(load.jobs for load in placer.placement.loads) == 1
    placer.choose(make_request("chatcmpl-d-4c", [1] * 40 + [7] * 8 + [3] * 9, **fields))
    assert placer.placement.placed == {"new": 3, "home": 1}
    assert placer.find("chatcmpl-c", None) is other


def test_a_reply_of_another_tenant_names_no_job() -> None:
    placer = make_placer()
    home = finish_turn(placer, "chatcmpl-a-1f", [1] * 40, cache_salt="tenant")
    for others in ([None], ["another"], []):
        placer.end_session("chatcmpl-a", others)
        assert placer.find("chatcmpl-a", others) is None
    assert placer.find("chatcmpl-a", ["tenant"]) is home
    placer.end_session("chatcmpl-a", ["tenant"])
    assert placer.find("chatcmpl-a", None) is None


def test_a_session_goes_before_a_reply_of_the_same_name() -> None:
    placer = make_placer()
    replied = finish_turn(placer, "one-1f", [1] * 40)
    placer.choose(make_request("2", [2] * 40, session_id="one"))
    placer.end_session("one", None)
    assert placer.find("one", None) is replied


@pytest.mark.parametrize(
    ("policy", "enabled", "home"),
    [("agentcache", None, True), ("vllm", None, False), ("agentcache", False, False), ("vllm", True, True)],
)
def test_jobs_stay_home_with_policies_that_follow_them(policy: str, enabled: bool | None, home: bool) -> None:
    config = AgentCacheConfig.model_validate({"policy": policy, "replicas": {"enabled": enabled}})
    assert keeps_jobs_home(config) is home


@pytest.mark.parametrize(
    # Two layers of two heads of 32 in float32: 1,024 bytes a token. Of four ranks each keeps a head, 512 bytes.
    ("size_gib", "ranks", "host"),
    [
        (None, 1, HostMemory()),
        (2.0, 1, HostMemory(2 * 2**20, 1024 / 4e9)),
        (2.0, 2, HostMemory(2 * 2**20, 512 / 4e9)),
        (2.0, 4, HostMemory(2**20, 512 / 4e9)),
    ],
)
def test_the_placement_knows_the_host_s_memory(
    size_gib: float | None, ranks: int, host: HostMemory, tiny_model_path: str
) -> None:
    knobs = {"policy": "agentcache", "tier": {"link_gb_s": 4.0}}
    config = EngineArgs(
        model=tiny_model_path,
        dtype="float32",
        scheduler_cls=SCHEDULER_CLASS,
        kv_offloading_size=size_gib,
        tensor_parallel_size=ranks,
        distributed_executor_backend="mp",
        additional_config={CONFIG_KEY: knobs},
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = 200
    placement = _plan_placement(config, read_config(config.additional_config), 2)()
    assert list_kept(placement, HostMemory) == [host]


def test_vllm_balances_until_the_placement_is_back() -> None:
    (ours, process), (again, process_again), clock = Pipe(), Pipe(), Clock()
    process.close()
    rejoining = Rejoining(lambda: again, clock=clock, run=lambda work: work())
    placer = Placer(SharedPlacement(ours, BLOCK, rejoining), lambda *_: None)
    client = make_client(placer)

    def send(name: str) -> bytes:
        return client.get_core_engine_for_request(make_request(name, [1] * 40, session_id="one"))

    # By vLLM's own counts the second engine is the better one, whatever the session.
    assert send("1") == ENGINES[1]
    assert placer.find("one", None) is None
    placer.end_session("one", None)
    finish(client, "1", [7] * 8)
    clock.now_s += 1.0
    assert send("2") == ENGINES[1], "the placement is looked for, and no request waits for it"
    process_again.send(Placed(0, "job", "home"))
    assert send("3") == ENGINES[0]
    assert process_again.recv()[1] == "place"
    finish(client, "2", [7] * 8)
    assert not process_again.poll(), "it was not asked about the second"


def test_each_policy_of_a_run_gets_a_placer_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = partial(JobPlaces, 2, capacity_tokens=4000, prefill_cost=COST)
    monkeypatch.setattr(placing_client, "_plan_placement", lambda *_: placement)
    client = make_client(None)

    def go_on_with(policy: str) -> Placer | None:
        given = SimpleNamespace(additional_config={CONFIG_KEY: {"policy": policy}})
        return place_requests(client, given)  # type: ignore[arg-type]

    def send(name: str) -> bytes:
        return client.get_core_engine_for_request(make_request(name, list(range(40)), session_id="job"))

    assert go_on_with("vllm") is None
    assert send("by load") == ENGINES[1], "vLLM's balancer takes the emptier engine"
    first = go_on_with("agentcache")
    assert first is not None
    home = send("first turn")
    finish(client, "first turn", [1])
    assert send("second turn") == home
    second = go_on_with("agentcache-interactive")
    assert second is not None
    assert second.find("job", None) is None, "the jobs of the last policy are forgotten"
    assert go_on_with("vllm") is None
    assert send("by load again") == ENGINES[1]


def test_a_request_with_a_huge_id_is_kept_by_a_short_name() -> None:
    placer = make_placer()
    client, name = make_client(placer), "x" * 100_000
    client.get_core_engine_for_request(make_request(name, [1] * 9))
    finish(client, name, [2] * 8)
    client.get_core_engine_for_request(make_request("next", [1] * 9 + [2] * 8))
    (home,) = list_kept(placer, JobHome)
    assert (len(home.job) <= 64, home.open) == (True, 1)
