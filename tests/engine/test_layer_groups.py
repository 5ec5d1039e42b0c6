"""Models whose layers do not all keep the same: sliding windows beside full attention, and recurrent states."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from grouped_scheduler import FULL, RECURRENT, WARNED, WINDOW, make_lone
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from steered_scheduler import SEARCH, do_turn_in_no_time, run_until_idle, tokens_of
from transformers import Mamba2Config
from vllm.v1.kv_cache_interface import (
    KVCacheSpec,
)

from agentcache._evictor import LruEvictor, PinnedEvictor
from agentcache.engine.blocks import evictor_inputs
from agentcache.engine.order.job_queue import JobQueue
from agentcache.models.geometry import read_geometry


def test_a_waiting_request_keeps_its_hits_in_every_group(tiny_model_path: str) -> None:
    """The first group, of a sliding window, has nothing of the beginning; what counts is what vLLM would hit."""
    lone = make_lone(tiny_model_path, [WINDOW, FULL], policy="agentcache")
    prompt = tokens_of(1, 12 * BLOCK_SIZE)
    do_turn_in_no_time(lone, "one", prompt, calls=())
    lone.add("again", [*prompt, *tokens_of(2, 20)], output_tokens=1, calls=())
    request = lone.scheduler.requests["again"]
    blocks, tokens, _ = lone.scheduler.kv_cache_manager.get_computed_blocks(request)
    assert tokens == 12 * BLOCK_SIZE
    hits = {block.block_id for group in blocks.blocks for block in group if not block.is_null}
    assert {block.block_id for block in lone.scheduler.find_hits(request)} == hits
    assert lone.scheduler.evictor.adopted == len(hits) == 12 + 4
    run_until_idle(lone)
    lone.scheduler.check_integrity()


@pytest.mark.parametrize(("specs", "blocks"), [([FULL, RECURRENT], 40), ([RECURRENT], 8)], ids=["hybrid", "recurrent"])
@pytest.mark.parametrize("policy", ["agentcache", "agentcache-interactive"])
def test_recurrent_models_wait_no_longer_than_their_cache_takes(
    tiny_model_path: str, specs: list[KVCacheSpec], blocks: int, policy: str
) -> None:
    lone = make_lone(tiny_model_path, specs, blocks=blocks, policy=policy)
    assert lone.scheduler.tracker.pins is not None
    assert isinstance(lone.scheduler.waiting, JobQueue)
    assert lone.scheduler.gap_filler is None
    # A tiny model computes it in less than a second.
    patient = make_lone(tiny_model_path, [FULL], blocks=blocks, policy=policy)
    assert 0 < lone.scheduler.tracker.waiting.patience_s < 1 < patient.scheduler.tracker.waiting.patience_s
    stock = make_lone(tiny_model_path, specs, blocks=blocks, policy="vllm")
    assert count_hits(run_jobs(lone)) >= count_hits(run_jobs(stock))


def test_a_knob_gives_recurrent_models_more_patience(tiny_model_path: str) -> None:
    lone = make_lone(tiny_model_path, [FULL, RECURRENT], policy="agentcache", order={"patience_s": 9.0})
    assert lone.scheduler.tracker.waiting.patience_s == 9.0
    assert isinstance(lone.scheduler.evictor, PinnedEvictor)
    do_turn_in_no_time(lone, "one", tokens_of(1, 100), calls=(SEARCH,))
    assert len(lone.scheduler.tracker.pins) == 1
    lone.scheduler.check_integrity()


def run_jobs(lone: LoneScheduler) -> list[tuple[dict[str, int], list[int]]]:
    """Jobs that come back, in a cache that holds half of them: hits and evictions, step by step."""
    steps = []
    for turn in range(3):
        for job in range(6):
            lone.add(f"{job} {turn}", tokens_of(job, 100 + 40 * turn), output_tokens=3, calls=(SEARCH,))
            steps += run_until_idle(lone)
    assert any(step.evicted for step in steps)
    return [(step.hit_tokens, step.evicted) for step in steps]


def count_hits(steps: list[tuple[dict[str, int], list[int]]]) -> int:
    return sum(sum(hits.values()) for hits, _ in steps)


def test_layers_that_do_not_keep_all_tokens_have_no_shadow_lru(tiny_model_path: str) -> None:
    for policy in ("lru", "agentcache"):
        assert make_lone(tiny_model_path, [WINDOW, FULL], policy=policy).scheduler.comparison is None


def test_a_model_of_recurrent_layers_alone_starts(tiny_model_path: str, tmp_path: Path) -> None:
    """Its configuration knows no attention heads, of which costs are made."""
    for file in Path(tiny_model_path).glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = Mamba2Config(num_heads=8, head_dim=16, hidden_size=64, num_hidden_layers=2, n_groups=1, vocab_size=8192)
    config.architectures = ["Mamba2ForCausalLM"]
    config.save_pretrained(tmp_path)
    for policy in ("agentcache", "asymcache", "continuum-paper", "pensieve"):
        lone = make_lone(str(tmp_path), [RECURRENT], policy=policy)
        assert isinstance(lone.scheduler.evictor, LruEvictor)
        do_turn_in_no_time(lone, "one", tokens_of(1, 100), calls=(SEARCH,))
        lone.scheduler.check_integrity()


def test_a_config_without_what_costs_need_is_served_as_by_lru(
    tiny_model_path: str, monkeypatch: pytest.MonkeyPatch, vllm_log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evictor_inputs, "read_geometry", lambda _: read_geometry(SimpleNamespace(hidden_size=128)))
    lone = make_lone(tiny_model_path, [FULL], blocks=40, policy="agentcache")
    (line,) = [record.message for record in vllm_log.records if (record.name, record.levelname) == WARNED]
    assert line.startswith("The model's config (SimpleNamespace) has no num_hidden_layers: policy agentcache cannot ")
    assert isinstance(lone.scheduler.evictor, LruEvictor)
    stock = make_lone(tiny_model_path, [FULL], blocks=40, policy="vllm")
    assert run_jobs(lone) == run_jobs(stock)


@pytest.mark.parametrize("policy", ["continuum-code", "continuum-paper"])
def test_recurrent_models_keep_the_pins_of_continuum(tiny_model_path: str, policy: str) -> None:
    lone = make_lone(tiny_model_path, [FULL, RECURRENT], policy=policy)
    assert lone.scheduler.tracker.pins is not None
    assert isinstance(lone.scheduler.waiting, JobQueue)
