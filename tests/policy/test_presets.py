"""What data sheets give; what was measured is in tests/profile/test_measured_profile.py."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.errors import InputError
from agentcache.models.shapes import SHAPES
from agentcache.policy import presets
from agentcache.policy.cost import read_profile
from agentcache.policy.gpus import GPUS
from agentcache.policy.presets import (
    PRESETS,
    PROFILES,
    count_parameters,
    estimate_cost_model,
    estimate_step_cost,
    find_cost_profile,
    find_step_cost,
)
from agentcache.policy.step_cost import Row, StepCost

MEASURABLE = {model: pair for model, pair in PRESETS.items() if pair[0].model_type == "llama"}
PAIRS = [(model, gpu, 8 if "70b" in model else 1) for model, (_, gpus) in MEASURABLE.items() for gpu in gpus]
each_preset = pytest.mark.parametrize(("model", "gpu", "ranks"), PAIRS)
COST = StepCost(
    overhead_s=1.0, weights_read_s=10.0, token_s=0.1, token_link_s=0.01, head_s=0.5, pair_s=1e-3, kv_read_s=0.02
)
rows = st.lists(st.builds(Row, st.integers(1, 5000), st.integers(0, 50_000)), min_size=1, max_size=5)


@pytest.fixture(autouse=True)
def _no_measured_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(presets, "PROFILES", tmp_path)


@pytest.mark.parametrize(("shape", "published"), [("llama-3.1-8b", 8_030_261_248), ("llama-3.1-70b", 70_553_706_496)])
def test_parameters_are_the_published_ones(shape: str, published: int) -> None:
    assert count_parameters(SHAPES[shape]) == published


# Measured on one H200 with vLLM 0.32, Llama-3.1-8B geometry, bfloat16: time to first token, median of 5.
@pytest.mark.parametrize(
    ("query", "context", "measured_s"),
    [
        (1_024, 0, 0.0250),
        (4_096, 0, 0.1038),
        (10_240, 0, 0.2784),
        (32_768, 0, 1.1849),
        (2_560, 7_680, 0.0785),
        (8_192, 24_576, 0.3791),
    ],
)
def test_prefill_on_the_h200_is_near_what_was_measured(query: int, context: int, measured_s: float) -> None:
    assert find_step_cost("llama-3.1-8b", "h200").prefill_s(query, context) == pytest.approx(measured_s, rel=0.2)


@given(st.integers(1, 60), st.integers(0, 80), st.integers(1, 100))
def test_a_window_counts_what_each_query_sees(query: int, context: int, window: int) -> None:
    sees = [range(max(0, last + 1 - window), last + 1) for last in range(context, context + query)]
    assert Row(query, context).within(window) == (sum(map(len, sees)), len(set().union(*sees)))


def test_windows_cost_as_full_attention_until_they_are_full() -> None:
    full = SHAPES["llama-3.1-8b"].geometry
    (attention,) = full.attention
    windowed = replace(full, attention=(replace(attention, window=4096),))
    mixed = replace(full, attention=(replace(attention, layers=16), replace(attention, layers=16, window=4096)))
    by_full, by_windowed, by_mixed = (estimate_step_cost(each, GPUS["h200"]) for each in (full, windowed, mixed))
    for query, context in ((1000, 0), (96, 4000), (1, 4095)):
        expected = by_full.prefill_s(query, context)
        assert by_windowed.prefill_s(query, context) == pytest.approx(expected)
        assert by_mixed.prefill_s(query, context) == pytest.approx(expected)
    # 512 queries behind 32,000 tokens: 8 times as many keys as the window holds.
    longest, shortest = by_full.prefill_s(512, 32_000), by_windowed.prefill_s(512, 32_000)
    assert by_mixed.prefill_s(512, 32_000) == pytest.approx((longest + shortest) / 2)
    assert longest - shortest == pytest.approx((512 * (32_000 - 4096) + 512 * 513 / 2) * by_full.pair_s)


def test_blocks_behind_windows_cost_less_with_their_position() -> None:
    """Half of the layers look all the way back, so a block's cost grows half as fast; with none, hardly."""
    full = SHAPES["llama-3.1-8b"].geometry
    (attention,) = full.attention

    def slope(full_layers: int) -> float:
        groups = (replace(attention, layers=full_layers), replace(attention, layers=32 - full_layers, window=128))
        step_cost = estimate_step_cost(replace(full, attention=groups), GPUS["h200"])
        return estimate_cost_model(step_cost).cost_model.recompute_cost(16).slope_s

    assert slope(16) == pytest.approx(slope(32) / 2, rel=0.05)
    assert abs(slope(0)) < 0.05 * slope(32)


def test_states_cost_the_bytes_of_the_type_they_are_kept_in() -> None:
    # Qwen3-Next's in the model's own type, the others' in 32 bits.
    for model, numbers, number_bytes in (
        ("qwen3-next-80b-a3b", 36 * 32 * 128 * 128, 2),
        ("qwen3.5-9b", 24 * 32 * 128 * 128, 4),
        ("nemotron-h-8b", 24 * 128 * 64 * 128, 4),
    ):
        cost = estimate_step_cost(SHAPES[model].geometry, GPUS["h200"])
        assert cost.state_s == pytest.approx(2 * numbers * number_bytes / (0.8 * 4.8e12)), model


RECURRENT = {"qwen3-next-80b-a3b": 36, "qwen3.5-9b": 24, "nemotron-h-8b": 24}


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("gpu", ["h20", "h100", "h200"])
def test_a_prefill_pays_for_each_recurrent_layer(model: str, gpu: str) -> None:
    cost = estimate_step_cost(SHAPES[model].geometry, GPUS[gpu])
    expected_s = 1.25e-3 * RECURRENT.get(model, 0)
    assert cost.prefill_overhead_s == pytest.approx(expected_s)
    # More ranks run as many layers, and a step of decodes has no prefill.
    assert estimate_step_cost(SHAPES[model].geometry, GPUS[gpu], 2).prefill_overhead_s == cost.prefill_overhead_s
    assert cost.decode_s([999] * 8) == replace(cost, prefill_overhead_s=0.0).decode_s([999] * 8)


@pytest.mark.parametrize("model", RECURRENT)
def test_what_a_prefill_pays_once_is_no_cost_of_blocks(model: str) -> None:
    """A step has it for one block as for many, so evictor and waits do not count it."""
    dear = estimate_step_cost(SHAPES[model].geometry, GPUS["h200"])
    by_dear, by_cheap = (
        estimate_cost_model(cost).cost_model.recompute_cost(16)
        for cost in (dear, replace(dear, prefill_overhead_s=0.0))
    )
    for position in (0, 1_000, 50_000):
        assert by_dear.at(position) == pytest.approx(by_cheap.at(position), rel=1e-6)


def test_data_sheets_order_the_gpus() -> None:
    h20, h100, h200 = (find_step_cost("llama-3.1-8b", gpu) for gpu in ("h20", "h100", "h200"))
    assert h20.prefill_s(8192) > 4 * h100.prefill_s(8192)
    assert h100.prefill_s(8192) == h200.prefill_s(8192)
    contexts = [4096] * 16
    assert h200.decode_s(contexts) < h20.decode_s(contexts) < h100.decode_s(contexts)


def test_decode_reads_the_weights_once_and_each_cache() -> None:
    cost = find_step_cost("llama-3.1-8b", "h200")
    # 7.5e9 parameters without the embedding table, and 128 KiB of keys and values a token, at 0.8 x 4.8 TB/s.
    assert cost.weights_read_s == pytest.approx(7.505e9 * 2 / (0.8 * 4.8e12), rel=1e-3)
    assert cost.kv_read_s == pytest.approx(131_072 / (0.8 * 4.8e12))
    assert cost.decode_s([999]) == pytest.approx(cost.overhead_s + cost.weights_read_s + 1000 * cost.kv_read_s)
    assert 0.003 < cost.decode_s([999]) < 0.01


def test_a_step_is_the_sum_of_its_parts() -> None:
    # Few tokens: the weights' read binds; attention: 4 x 50 + 10 pairs take 0.21 s, 54 keys 1.08 s.
    assert COST.prefill_s(4, 50) == pytest.approx(1 + 10 + 0.04 + 1.08)
    # Many tokens: compute binds both.
    assert COST.prefill_s(1000) == pytest.approx(1 + 100.5 + 10 + 500.5)
    assert COST.step_s([Row(1000, 0), Row(1, 99)]) == pytest.approx(1 + 100.1 + 1 + 10.01 + 500.5 + 2)


def test_any_prefill_in_a_step_pays_its_overhead_once() -> None:
    dear = replace(COST, prefill_overhead_s=3.0)
    assert dear.decode_s([7, 8]) == COST.decode_s([7, 8])
    rows = [Row(4, 0), Row(2, 16), Row(1, 9)]
    assert dear.step_s(rows) == pytest.approx(COST.step_s(rows) + 3)
    assert dear.step_s([]) == 0


def test_a_step_without_rows_takes_no_time() -> None:
    assert COST.step_s([]) == COST.decode_s([]) == 0


@given(rows=rows, more=st.integers(1, 1000))
def test_more_work_makes_a_step_longer_but_not_as_long_as_two(rows: list[Row], more: int) -> None:
    whole = COST.step_s(rows)
    assert COST.step_s([rows[0]._replace(context=rows[0].context + more), *rows[1:]]) > whole
    assert COST.step_s([*rows, Row(more, 0)]) > whole
    assert COST.step_s([*rows, Row(more, 0)]) < whole + COST.prefill_s(more)


@given(query=st.integers(2, 20_000), context=st.integers(0, 50_000), share=st.floats(0.01, 0.99))
def test_chunks_of_a_prompt_add_up_to_the_pairs_of_the_whole(query: int, context: int, share: float) -> None:
    first = max(1, int(query * share))
    pairs_only = StepCost(0, 0, 0, 0, 0, pair_s=1, kv_read_s=0)
    chunks = pairs_only.prefill_s(first, context) + pairs_only.step_s([Row(query - first, context + first)])
    assert chunks == pytest.approx(pairs_only.prefill_s(query, context))


def test_tensor_parallelism_splits_work_and_pays_for_the_links() -> None:
    one, four, eight = (find_step_cost("llama-3.1-8b", "h200", ranks) for ranks in (1, 4, 8))
    assert eight.token_s == pytest.approx(one.token_s / 8)
    assert eight.kv_read_s == pytest.approx(one.kv_read_s / 8)
    assert one.token_link_s == 0 < four.token_link_s < eight.token_link_s
    assert one.prefill_s(8192) / 8 < eight.prefill_s(8192) < four.prefill_s(8192) < one.prefill_s(8192)
    # Eight KV heads: from 8 ranks on each holds one.
    assert find_step_cost("llama-3.1-8b", "h200", 16).kv_read_s == eight.kv_read_s


@each_preset
def test_the_cost_profile_follows_the_step_cost(model: str, gpu: str, ranks: int) -> None:
    cost = find_step_cost(model, gpu, ranks)
    profile = find_cost_profile(model, gpu, ranks)
    assert profile.r_squared > 0.999
    assert profile.cost_model.predict(256, 2048, 4096, 512) == pytest.approx(
        cost.step_s([Row(2048, 256), Row(512, 6400)]), rel=0.1
    )
    for position in (16, 1024, 16_384, 131_072):
        attended = position - 16 / 2
        block_s = 16 * (cost.token_s + cost.token_link_s + cost.pair_s * attended)
        assert profile.cost_model.recompute_cost(16).at(position) == pytest.approx(block_s, rel=0.02)


def test_a_profile_that_comes_along_is_of_what_its_name_says() -> None:
    files = list(PROFILES.glob("*.json"))
    assert files
    assert [read_profile(file).key.file_name for file in files] == [file.name for file in files]


@each_preset
def test_the_cost_profile_says_that_nothing_was_measured(model: str, gpu: str, ranks: int) -> None:
    profile = find_cost_profile(model, gpu, ranks)
    assert not profile.measured
    assert profile.source == f"estimated, not measured: {GPUS[gpu].source}"
    assert profile.steps is not None
    assert profile.steps.step_cost == find_step_cost(model, gpu, ranks)
    assert (profile.key.model, profile.key.gpu, profile.key.tensor_parallel_size) == (model, gpu, ranks)
    assert profile.key.dtype == ("float32" if gpu == "cpu" else "bfloat16")


@pytest.mark.parametrize(
    ("model", "gpu", "remedy"),
    [
        ("llama-3.1-8b", "a100", "; did you mean a100-40gb or a100-80gb?; GPUs of that model are h20, h100, "),
        ("tiny", "h200", "; GPUs of that model are cpu"),
        ("llama-3.1-8", "h200", "; did you mean llama-3.1-8b?; models are llama-3.1-8b, "),
        ("unheard-of", "h200", "; models are llama-3.1-8b, "),
    ],
)
def test_a_missing_preset_is_answered_with_what_exists(model: str, gpu: str, remedy: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"no preset for model {model} on gpu {gpu}{remedy}")):
        find_cost_profile(model, gpu)


PUBLISHED = [name for name, shape in SHAPES.items() if shape.model_type != "llama"]


@pytest.mark.parametrize("model", PUBLISHED)
def test_published_models_have_costs_from_their_geometry(model: str) -> None:
    cost = estimate_step_cost(SHAPES[model].geometry, GPUS["h200"])
    assert 0 < cost.prefill_s(1024) < cost.prefill_s(8192) < cost.prefill_s(8192, 65_536)
    assert 0 < cost.decode_s([1024]) < cost.decode_s([1024] * 64)


@pytest.mark.parametrize("ranks", [0, -1, 3])
def test_ranks_must_divide_the_heads(ranks: int) -> None:
    with pytest.raises(InputError, match=f"tensor_parallel_size {ranks}: must divide the 32 attention heads"):
        find_step_cost("llama-3.1-8b", "h200", ranks)


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match=r"tensor_parallel_size 1: llama-3\.1-70b has 141\.1 GB of weights"):
        find_step_cost("llama-3.1-70b", "h200")
    find_step_cost("llama-3.1-70b", "h200", 2)


def test_presets_load_without_the_engine() -> None:
    check = "import agentcache.policy.presets, sys; print({'torch', 'vllm'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("model", SHAPES)
@pytest.mark.parametrize("gpu", GPUS)
def test_smaller_numbers_in_the_cache_leave_costs_as_they_are(model: str, gpu: str) -> None:
    """Prefills wait for compute, so the evictor's costs need not know of --kv-cache-dtype."""
    whole = estimate_step_cost(SHAPES[model].geometry, GPUS[gpu])
    windows = tuple(replace(window, kv_read_s=window.kv_read_s / 4) for window in whole.windows)
    quarter = replace(whole, kv_read_s=whole.kv_read_s / 4, windows=windows)
    by_whole, by_quarter = (estimate_cost_model(each).cost_model.recompute_cost(16) for each in (whole, quarter))
    for position in (0, 1_000, 50_000):
        assert by_quarter.at(position) == pytest.approx(by_whole.at(position), rel=0.01)
