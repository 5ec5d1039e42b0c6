"""Gaps of requests with images, on an engine whose model does not look at them: what the encoder is asked to do."""

from __future__ import annotations

from typing import Any

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler
from steered_scheduler import do_turn_in_no_time, make_lone, run_until_idle, tokens_of
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

PROMPT = tokens_of(1, 18 * BLOCK_SIZE + 3)
IMAGE_TOKENS = 40


def image_at(offset: int, name: str) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(None, "image", name, PlaceholderRange(offset=offset, length=IMAGE_TOKENS))


# Blocks 2 to 4 and 8 to 10, in part.
IMAGES = [image_at(2 * BLOCK_SIZE + 5, "first"), image_at(8 * BLOCK_SIZE + 5, "second")]


@pytest.fixture
def lone(tiny_model_path: str) -> LoneScheduler:
    """The encoder's cache holds one image."""
    lone = make_lone(tiny_model_path, "asymcache", gpu="h200", lifespan_s=30.0, tuning={"row_s": 0.0})
    lone.scheduler.max_num_encoder_input_tokens = IMAGE_TOKENS
    lone.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=IMAGE_TOKENS)
    do_turn_in_no_time(lone, "before", PROMPT, calls=(), mm_features=IMAGES)
    return lone


def ask_again(lone: LoneScheduler, lost: list[int]) -> tuple[int, list[str], Any]:
    """Tokens of the prompt that were cached, the images that were encoded, and the requests' counts."""
    lone.add("look", PROMPT, output_tokens=1, mm_features=IMAGES)
    hits = lone.scheduler.find_hits(lone.scheduler.requests["look"])
    lone.abort("look")
    lone.pool.evict_blocks({hits[index].block_id for index in lost})
    lone.scheduler.reset_encoder_cache()
    encoded: list[str] = []
    schedule = lone.scheduler.schedule

    def note_encoded() -> Any:
        output = schedule()
        for name, inputs in output.scheduled_encoder_inputs.items():
            encoded.extend(lone.scheduler.requests[name].mm_features[index].identifier for index in inputs)
        return output

    lone.scheduler.schedule = note_encoded  # type: ignore[method-assign]
    lone.add("again", PROMPT, output_tokens=4, mm_features=IMAGES)
    steps = run_until_idle(lone)
    assert any("again" in step.finished for step in steps)
    return sum(step.hit_tokens.get("again", 0) for step in steps), encoded, lone.scheduler.gap_filler.stats


def test_a_gap_in_the_text_needs_no_encoder(lone: LoneScheduler) -> None:
    cached, encoded, stats = ask_again(lone, [6, 13])
    assert (cached, encoded, stats.fill_tokens) == (16 * BLOCK_SIZE, [], 2 * BLOCK_SIZE)
    assert not stats.fallbacks


def test_a_gap_with_an_image_has_it_encoded_once(lone: LoneScheduler) -> None:
    cached, encoded, stats = ask_again(lone, [1, 2, 3, 4, 5])
    assert (cached, encoded, stats.fill_tokens) == (13 * BLOCK_SIZE, ["first"], 5 * BLOCK_SIZE)


def test_a_gap_with_more_than_the_encoder_holds_is_filled(lone: LoneScheduler) -> None:
    cached, encoded, stats = ask_again(lone, list(range(1, 12)))
    assert (cached, encoded, stats.fill_tokens) == (7 * BLOCK_SIZE, ["first", "second"], 11 * BLOCK_SIZE)


def test_a_gap_that_ends_within_an_image_ends_behind_it(lone: LoneScheduler) -> None:
    cached, encoded, stats = ask_again(lone, [7, 8])
    assert (cached, encoded, stats.fill_tokens) == (14 * BLOCK_SIZE, ["second"], 4 * BLOCK_SIZE)


def test_a_segment_that_ends_within_an_image_is_kept(lone: LoneScheduler) -> None:
    cached, encoded, stats = ask_again(lone, [4, 5])
    assert (cached, encoded, stats.fill_tokens) == (16 * BLOCK_SIZE, ["first"], 2 * BLOCK_SIZE)
