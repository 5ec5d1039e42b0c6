"""One engine under one policy after another: as good as a fresh engine for each."""

from __future__ import annotations

import gc
import itertools
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from background_server import SharedServer
from live_engine import BLOCK, LiveEngine, Reply, make_prompt, switch_without_collecting
from openai import OpenAI
from sizes import pick_size
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import FCFSRequestQueue

from agentcache.config import AgentCacheConfig, RuntimeConfig
from agentcache.config_reader import read_config
from agentcache.engine.rpc.policy_switch import use_policy
from agentcache.engine.rpc.snapshot import SNAPSHOT_METHOD, EngineSnapshot, make_snapshot
from agentcache.errors import InputError, ServerError
from agentcache.tuning import Tuning
from tool_runtime.learning.durations import Ended
from tool_runtime.learning.tool_key import ToolKey

pytestmark = pytest.mark.engine

BASH = ToolKey("bash")

ALL_ISLANDS = Tuning(row_s=0.0)
TURNS = pick_size(2, 3)


@pytest.fixture(scope="module")
def small(tiny_model_path: str) -> LiveEngine:
    return make_small(tiny_model_path, "asymcache")


def make_small(model_path: str, policy: str) -> LiveEngine:
    """A cache of 40 blocks: what the requests of `serve` need is half as much again."""
    return LiveEngine(model_path, policy=policy, num_gpu_blocks_override=41)


def core_of(engine: LiveEngine) -> Any:
    return engine.core


def make_config(policy: str) -> AgentCacheConfig:
    return AgentCacheConfig(policy=policy, lifespan_s=200, tuning=ALL_ISLANDS)


def switch(engine: LiveEngine, policy: str) -> None:
    settle(engine)
    switch_without_collecting(core_of(engine), make_config(policy))
    engine.scheduler.clock = itertools.count(1.0).__next__


def settle(engine: LiveEngine) -> None:
    """As the engine's own process does before it waits for work: the workers hear of what finished."""
    while engine.scheduler.has_requests() or core_of(engine).batch_queue:
        engine.step()


def serve(engine: LiveEngine) -> list[Reply]:
    """Sessions that grow turn by turn and take the cache from each other."""
    prompts = [make_prompt(seed, 6 * BLOCK + 5) for seed in range(6)]
    replies = []
    for turn in range(TURNS):
        for index, prompt in enumerate(prompts):
            prompts[index] = prompt + make_prompt(100 * turn + index, 2 * BLOCK + 3)
            replies.append(engine.ask(prompts[index], 4))
    return replies


def outcome(engine: LiveEngine) -> tuple[list[list[int]], list[int], dict[str, Any], Any]:
    """Reply tokens, cached tokens, evictions and segments of all requests of `serve`."""
    replies = serve(engine)
    found = make_snapshot(engine.scheduler).model_dump()
    return [each.tokens for each in replies], [each.cached for each in replies], found["evictions"], found["segments"]


def test_each_policy_does_what_it_does_in_a_fresh_engine(small: LiveEngine, tiny_model_path: str) -> None:
    on_one = {"asymcache": outcome(small)}
    for policy in ("vllm", "lru", "agentcache"):
        switch(small, policy)
        on_one[policy] = outcome(small)
    other = make_small(tiny_model_path, "lru")
    alone = {"lru": outcome(other)}
    for policy in ("agentcache", "asymcache"):
        switch(other, policy)
        alone[policy] = outcome(other)
    # The first of each engine had it fresh, and neither policy followed upon the same one.
    assert alone == {policy: on_one[policy] for policy in alone}
    assert on_one["vllm"][:2] == on_one["lru"][:2]
    hits = {policy: sum(cached) for policy, (_, cached, *_) in on_one.items()}
    assert len(set(hits.values())) > 1, "the policies differ, or nothing was compared"
    assert on_one["lru"][2]["capacity"]["blocks"] > 0


def test_a_policy_begins_with_nothing_cached_counted_or_learned(small: LiveEngine) -> None:
    switch(small, "asymcache")
    serve(small)
    before = make_snapshot(small.scheduler)
    switch(small, "asymcache")
    after = make_snapshot(small.scheduler)
    assert before.evictions["capacity"].blocks > 0
    assert {cause: lost.blocks for cause, lost in after.evictions.items()} == {"capacity": 0, "reset": 0}
    assert after.lambda_value == 1.0
    assert (after.blocks.used, after.blocks.free) == (0, 40)
    assert small.ask(make_prompt(0, 6 * BLOCK), 2).cached == 0


def test_the_next_policy_has_the_durations_of_the_last(small: LiveEngine, tmp_path: Path) -> None:
    config = make_config("agentcache").model_copy(
        update={"runtime": RuntimeConfig(durations_file=str(tmp_path / "durations.json"))}
    )
    settle(small)
    switch_without_collecting(core_of(small), config)
    small.scheduler.tracker.runtime.durations.observe(BASH, 3.0, Ended.RETURNED, 1.0)
    settle(small)
    switch_without_collecting(core_of(small), config)
    assert small.scheduler.tracker.runtime.durations.history(BASH).tool_count == 1
    switch(small, "agentcache")
    assert small.scheduler.tracker.runtime.durations.history(BASH).tool_count == 0, "it has no file"


def test_under_vllm_nothing_is_replaced(small: LiveEngine) -> None:
    switch(small, "asymcache")
    assert type(small.scheduler.waiting) is not FCFSRequestQueue
    switch(small, "vllm")
    scheduler = small.scheduler
    assert type(small.pool.free_block_queue) is FreeKVCacheBlockQueue
    assert type(scheduler.waiting) is FCFSRequestQueue
    assert (scheduler.evictor, scheduler.gap_filler, scheduler.step_limit.tuning) == (None, None, None)
    # Methods that were put in the place of vLLM's are attributes of the object.
    parts = (scheduler, scheduler.kv_cache_manager, scheduler.kv_cache_manager.coordinator, small.pool)
    assert [
        name for part in parts for name, value in vars(part).items() if callable(value) and hasattr(type(part), name)
    ] == []


def test_the_workers_keep_no_request_of_the_last_policy(small: LiveEngine) -> None:
    small.ask(make_prompt(1, 3 * BLOCK), 3)
    runner = core_of(small).model_executor.driver_worker.model_runner
    assert len(runner.requests) == 1
    switch(small, "lru")
    assert (list(runner.requests), list(runner.input_batch.req_id_to_index)) == ([], [])


@pytest.mark.parametrize("policy", ["asymcache", "agentcache"])
def test_the_old_scheduler_is_freed_and_the_new_one_frozen(small: LiveEngine, policy: str) -> None:
    switch(small, policy)
    small.ask(make_prompt(1, 3 * BLOCK), 3)
    old = weakref.ref(small.scheduler)
    settle(small)
    assert use_policy(core_of(small), make_config("lru"))
    assert old() is None
    # Else the garbage collector would have work with the blocks of every policy but the first.
    block = small.pool.blocks[1]
    assert not any(each is block for each in gc.get_objects())


def test_a_request_under_way_stands_in_the_way_and_goes_on(small: LiveEngine) -> None:
    switch(small, "asymcache")
    prompt = make_prompt(5, 4 * BLOCK)
    cold = small.ask(prompt, 6)
    name = small.add(prompt, 6)
    small.step()
    scheduler = small.scheduler
    with pytest.raises(InputError, match="cannot change its policy: there are unfinished requests"):
        use_policy(core_of(small), AgentCacheConfig(policy="lru"))
    assert small.scheduler is scheduler
    small.finish()
    assert small.reply(name).tokens == cold.tokens


def test_steps_of_a_finished_request_must_be_over(small: LiveEngine) -> None:
    small.ask(make_prompt(5, 4 * BLOCK), 6)
    assert small.scheduler.has_requests(), "the workers have yet to hear that it finished"
    assert not use_policy(core_of(small), AgentCacheConfig(policy="lru"))
    settle(small)


@pytest.mark.parametrize(
    ("attribute", "obstacle"),
    [
        ("connector", "a KV connector is in use"),
        ("ec_connector", "an encoder cache connector is in use"),
        ("aux_output_connector", "auxiliary outputs are on"),
        ("enable_kv_cache_events", "its KV cache events are published"),
    ],
)
def test_what_others_keep_of_the_scheduler_stands_in_the_way(
    small: LiveEngine, monkeypatch: pytest.MonkeyPatch, attribute: str, obstacle: str
) -> None:
    settle(small)
    monkeypatch.setattr(small.scheduler, attribute, MagicMock())
    with pytest.raises(InputError, match=f"^the engine cannot change its policy: {obstacle}$"):
        use_policy(core_of(small), AgentCacheConfig(policy="lru"))


def test_another_scheduler_is_left_alone() -> None:
    with pytest.raises(InputError, match="its scheduler is object"):
        use_policy(SimpleNamespace(scheduler=object()), AgentCacheConfig(policy="lru"))  # type: ignore[arg-type]


def test_a_paused_engine_stays_paused(small: LiveEngine) -> None:
    settle(small)
    small.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    switch(small, "lru")
    assert small.scheduler.pause_state is PauseState.PAUSED_NEW
    name = small.add(make_prompt(5, BLOCK), 2)
    with pytest.raises(InputError, match="unfinished requests"):
        use_policy(core_of(small), AgentCacheConfig(policy="vllm"))
    small.scheduler.set_pause_state(PauseState.UNPAUSED)
    small.finish()
    assert len(small.reply(name).tokens) == 2


def test_a_policy_that_cannot_work_leaves_the_one_before(small: LiveEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(small, "lru")
    scheduler, config = small.scheduler, core_of(small).vllm_config.additional_config
    monkeypatch.setattr(type(scheduler), "_use_policy", fail)
    with pytest.raises(InputError, match="no cost model"):
        use_policy(core_of(small), AgentCacheConfig(policy="asymcache"))
    assert small.scheduler is scheduler
    assert core_of(small).vllm_config.additional_config is config
    assert len(small.ask(make_prompt(3, BLOCK), 2).tokens) == 2


def fail(*_: Any) -> None:
    raise InputError("no cost model")


def test_a_server_changes_its_policy_only_between_requests(shared_server: SharedServer) -> None:
    """Its engine is a process of its own."""
    server, client = shared_server, shared_server.client
    server.use("asymcache")
    for seed in range(8):
        complete(client, make_prompt(seed, 20 * BLOCK))
    assert complete(client, make_prompt(7, 20 * BLOCK)) > 0
    assert take_snapshot(server).evictions["capacity"].blocks > 0
    # Its last step may still be under way: nothing waits here.
    server.use("lru")
    snapshot = take_snapshot(server)
    assert (snapshot.policy, snapshot.evictions["capacity"].blocks, snapshot.blocks.used) == ("lru", 0, 0)
    assert read_config(server.embedded.vllm_config.additional_config).policy == "lru"
    assert complete(client, make_prompt(7, 20 * BLOCK)) == 0

    with pytest.raises(ServerError, match=r"agentcache\.policies: no such knob"):
        server.run(server.embedded.use_policy({"policies": "vllm"}))
    prompt = make_prompt(9, 3 * BLOCK)
    # Long enough that it still runs when the switch is tried, on a busy machine as well.
    stream = client.completions.create(
        model="tiny", prompt=prompt, max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    with pytest.raises(ServerError, match="cannot change its policy: there are unfinished requests"):
        server.use("vllm")
    *_, last = stream
    assert last.choices[0].finish_reason == "length"
    assert take_snapshot(server).policy == "lru"
    server.use("vllm")
    assert take_snapshot(server).evictions == {}


def complete(client: OpenAI, prompt: list[int]) -> int:
    """The prompt's cached tokens."""
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=3, temperature=0)
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    return (details.cached_tokens or 0) if details else 0


def take_snapshot(server: SharedServer) -> EngineSnapshot:
    (answer,) = server.run(server.embedded.engine.engine_core.call_utility_all_async(SNAPSHOT_METHOD))
    return EngineSnapshot.model_validate(answer)
