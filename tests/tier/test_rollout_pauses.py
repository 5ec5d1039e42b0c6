"""What trainers do between rollouts: vLLM's pause, resume, sleep, wake-up and new weights, whatever turns are doing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from live_engine import BLOCK, ColdEngine, LiveEngine, Reply, assert_same
from pausable_engine import PausableEngine
from rollout import HELD, HELD_TOKENS, RUNNING, RUNNING_TOKENS, TURN_TOKENS, Rollout
from safetensors.torch import load_file, save_file
from tiered_engine import start_tiered_as
from vllm.v1.engine import PauseMode

from agentcache.engine.rpc.job_views import view_session

pytestmark = pytest.mark.engine

Update = Callable[[PausableEngine, str], None]


class Weights(NamedTuple):
    """A model's folder, and stock vLLM with it that computes every prompt."""

    path: str
    cold: LiveEngine


def start_cold(path: str) -> Weights:
    return Weights(path, ColdEngine(path))


@pytest.fixture(scope="module")
def old(tiny_model_path: str) -> Weights:
    return start_cold(tiny_model_path)


@pytest.fixture(scope="module")
def new(tiny_model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Weights:
    folder = tmp_path_factory.mktemp("new") / "model"
    shutil.copytree(tiny_model_path, folder)
    file, generator = folder / "model.safetensors", torch.Generator().manual_seed(1)
    weights = load_file(file)
    # vLLM, asked to load weights again, leaves a head as it was that is tied to the embeddings.
    for name in [name for name in weights if "embed" not in name]:
        weights[name] += 0.1 * torch.randn(weights[name].shape, generator=generator)
    save_file(weights, file, {"format": "pt"})
    return start_cold(str(folder))


@contextmanager
def begin(model_path: str) -> Iterator[Rollout]:
    """Begin a rollout. Only when its engine is gone can a cold one run."""
    # The CPU cache is so small that evicted KV may be lost: else nothing would be pinned.
    with start_tiered_as(PausableEngine, model_path, 40) as engine:
        rollout = Rollout(engine)
        rollout.begin()
        yield rollout


def assert_cold(cold: LiveEngine, prompt: list[int], reply: Reply) -> None:
    # As the rollout's replies, which are said to have calls, those of the other engine end at an end of turn.
    assert_same(reply, cold.ask(prompt, len(reply.tokens), calls=[]))


def assert_mixed(old: Weights, new: Weights, prompt: list[int], reply: Reply, paused_at: int) -> None:
    """The tokens before the pause are of the old weights, those behind it as if all were computed with the new."""
    first, rest = (
        Reply(reply.tokens[part], reply.logprobs[part], 0, [])
        for part in (slice(None, paused_at), slice(paused_at, None))
    )
    assert_cold(old.cold, prompt, first)
    if rest.tokens:
        assert_cold(new.cold, prompt + first.tokens, rest)


@pytest.mark.parametrize("clear_cache", [True, False])
@pytest.mark.parametrize("mode", ["keep", "wait"])
def test_no_turn_is_lost_in_a_pause(old: Weights, mode: PauseMode, clear_cache: bool) -> None:
    with begin(old.path) as rollout:
        rollout.engine.pause(mode, clear_cache=clear_cache)
        assert rollout.engine.has_ended(rollout.running) is (mode == "wait")
        assert not rollout.engine.has_ended(rollout.held)
        cached = ((0, 0), (0, 0), (0, 0)) if clear_cache else ((12, 12), (0, 6), (6, 6))
        assert tuple(map(rollout.count_cached, ("pinned", "shelved", "fetched"))) == cached
        assert rollout.engine.scheduler.tracker.pins.blocks == (0 if clear_cache else 12)
        # They come meanwhile.
        backs = {job: rollout.second_turn(job) for job in ("pinned", "shelved")} | {"fetched": rollout.fetched}
        assert not rollout.engine.step()
        rollout.engine.resume()
        running, held, *replies = rollout.finish(rollout.running, rollout.held, *backs.values())
    assert (len(running.tokens), len(held.tokens)) == (RUNNING_TOKENS, HELD_TOKENS)
    assert_cold(old.cold, RUNNING, running)
    assert_cold(old.cold, HELD, held)
    for job, reply in zip(backs, replies, strict=True):
        assert bool(reply.cached) is not clear_cache
        assert_cold(old.cold, rollout.prompts[job], reply)


def test_an_aborting_pause_ends_requests_and_no_job(old: Weights) -> None:
    with begin(old.path) as rollout:
        rollout.engine.pause("abort", clear_cache=False)
        assert {rollout.engine.take_end(name) for name in (rollout.running, rollout.held, rollout.fetched)} == {"abort"}
        backs = {job: rollout.second_turn(job) for job in rollout.prompts}
        rollout.engine.resume()
        replies = rollout.finish(*backs.values())
        jobs = {job: view_session(rollout.engine.scheduler.tracker, job) for job in rollout.prompts}
    assert {view.turn_count for (view,) in jobs.values()} == {2}
    for job, reply in zip(backs, replies, strict=True):
        assert reply.cached >= 6 * BLOCK
        assert_cold(old.cold, rollout.prompts[job], reply)


def pause(mode: PauseMode, *, clear_cache: bool = True) -> Update:
    """As prime-rl, SkyRL and vLLM's own examples do."""

    def update(engine: PausableEngine, path: str) -> None:
        engine.pause(mode, clear_cache=clear_cache)
        engine.load_weights(path)
        engine.resume()

    return update


def sleep(mode: PauseMode, level: int) -> Update:
    """As verl does: room for the weights first, for the KV when they are there."""

    def update(engine: PausableEngine, path: str) -> None:
        engine.sleep(level, mode)
        assert not engine.wake_up(["weights"])
        engine.load_weights(path)
        assert not engine.step(), "it is not awake"
        assert engine.wake_up(["kv_cache"])

    return update


def reset_gpu_alone(engine: PausableEngine, path: str) -> None:
    """As `/reset_prefix_cache` does, unless its client asks for `reset_external`."""
    engine.pause("keep", clear_cache=False)
    assert engine.reset(running=True)
    engine.load_weights(path)
    engine.resume()


UPDATES = {
    "pause, keep": pause("keep"),
    "pause, wait": pause("wait"),
    "sleep, keep": sleep("keep", 1),
    "sleep, wait": sleep("wait", 2),
}


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_new_weights_find_no_old_kv(old: Weights, new: Weights, update: Update) -> None:
    with begin(old.path) as rollout:
        (request,) = rollout.engine.scheduler.running
        update(rollout.engine, new.path)
        assert [rollout.count_cached(job) for job in rollout.prompts] == [(0, 0)] * 3
        tokens_before = request.num_output_tokens
        backs = {"fetched": rollout.fetched} | {job: rollout.second_turn(job) for job in ("pinned", "shelved")}
        running, held, *replies = rollout.finish(rollout.running, rollout.held, *backs.values())
        (again,) = rollout.finish(rollout.second_turn("pinned"))
    assert (len(running.tokens), len(held.tokens)) == (RUNNING_TOKENS, HELD_TOKENS)
    assert_mixed(old, new, RUNNING, running, tokens_before)
    assert_cold(new.cold, HELD, held)
    for job, reply in zip(backs, replies, strict=True):
        assert reply.cached == 0
        assert_cold(new.cold, rollout.prompts[job], reply)
    assert again.cached > 0, "it caches as before"
    assert_cold(new.cold, rollout.prompts["pinned"], again)


@pytest.mark.parametrize(
    ("update", "job"),
    [(pause("keep", clear_cache=False), "pinned"), (reset_gpu_alone, "shelved")],
    ids=["nothing is cleared", "the CPU cache is not"],
)
def test_kv_of_old_weights_is_seen(old: Weights, new: Weights, update: Update, job: str) -> None:
    with begin(old.path) as rollout:
        update(rollout.engine, new.path)
        (reply,) = rollout.finish(rollout.second_turn(job))
    assert reply.cached > 0
    expected = new.cold.ask(rollout.prompts[job], TURN_TOKENS, calls=[])
    assert reply.logprobs != pytest.approx(expected.logprobs, abs=2e-3)
