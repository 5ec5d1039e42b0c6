"""Finds what steps and prefills take on known GPUs: as measured where there is a profile, else from data sheets."""

from __future__ import annotations

import itertools
from pathlib import Path

from agentcache.errors import InputError, suggest
from agentcache.models.geometry import AttentionLayers, Geometry
from agentcache.models.published import is_published, read_shape
from agentcache.models.shapes import SHAPES, SMALL, Shape
from agentcache.policy.cost import (
    CostProfile,
    FittedCostModel,
    PrefillBatch,
    ProfileKey,
    StepProfile,
    fit_cost_model,
    read_profile,
)
from agentcache.policy.gpus import GPUS, Gpu
from agentcache.policy.step_cost import Row, StepCost, WindowCost

# What `agentcache profile` measured, one file a ProfileKey. Where there is one, it goes before the data sheet.
PROFILES = Path(__file__).with_name("profiles")

# Share of the data sheet that kernels reach. Compute and bandwidth: chosen so that prefills and decodes of Llama-3.1-8B
# on an H200 under vLLM 0.32 come out as measured (docs/results.md), the one GPU that has a profile; on
# other GPUs they are a guess. Links: a usual value.
COMPUTE_EFFICIENCY = 0.62
BANDWIDTH_EFFICIENCY = 0.8
LINK_EFFICIENCY = 0.8
ESTIMATE_ERROR = (
    "On the one GPU that was measured, an H200 with Llama-3.1-8B, such an estimate is off by up to 8 % for prefills of "
    "1,000 tokens and more, 37 % for 256 behind 768 cached ones, and 10 % for decodes; on others it may be more."
)
# Start and synchronisation of one all-reduce between GPUs of a host; two of them a layer.
ALL_REDUCE_LATENCY_S = 10e-6
# What a token multiplies a recurrent state's number with: decay, value, query; once more within a chunk.
_STATE_PRODUCTS = 4
# What a step with a prefill takes longer for each recurrent layer: vLLM runs their prefill outside of CUDA graphs. Of
# Qwen3.5-9B's geometry, 24 such layers, on an H100 with vLLM's Triton kernel: 150 tokens behind 1,056 cached ones took
# 44 to 57 ms, 14 without this. With it, simulated BFCL jobs under `vllm` take +3 and -2 % of what they took there.
RECURRENT_PREFILL_S = 1.25e-3
# vLLM's default of --gpu-memory-utilization, and what activations and CUDA graphs take of it (assumed).
MEMORY_SHARE = 0.92
WORKSPACE_SHARE = 0.03
DTYPE_BYTES = {"bfloat16": 2, "float32": 4}


# A model with random weights of this project runs on the CPU, any other on all the rest.
_DATA_SHEETS = tuple(gpu for gpu in GPUS if gpu != "cpu")
PRESETS: dict[str, tuple[Shape, tuple[str, ...]]] = {
    **{name: (shape, _DATA_SHEETS) for name, shape in SHAPES.items()},
    **{name: (shape, ("cpu",)) for name, shape in SMALL.items()},
}


def count_parameters(shape: Shape) -> int:
    """Count the whole model: layers, embeddings, output head, last norm."""
    tables = 1 if shape.tied_embeddings else 2
    return shape.geometry.layer_parameters + tables * shape.vocabulary * shape.hidden + shape.hidden


def find_step_cost(model: str, gpu: str, tensor_parallel_size: int = 1) -> StepCost:
    """Find a measured one if there is a profile, else an analytic one. Raises InputError without preset or room.

    Llama-3.1-8B on one H200 is measured. Against other runs on the same GPU, in brackets what `estimate_step_cost`
    gives: prefill of 1,024 tokens +7 % (−1), of 256 after 768 cached +9 % (−32), of 10,240 −2 % (+1), of 8,192 after
    24,576 cached +3 % (+2); 64 decodes alone −7 % (−11), beside 1,024 tokens of a prompt +6 % (+1), beside 8,128 −5 %
    (−1). Off by 3 % in half of the steps that were measured, by 14 % in 9 of 10.
    """
    shape, hardware = _find_preset(model, gpu)
    _check_split(model, shape, gpu, hardware, tensor_parallel_size)
    measured = find_measured_profile(model, gpu, tensor_parallel_size)
    if measured is not None and measured.steps is not None:
        return measured.steps.step_cost
    return estimate_step_cost(shape.geometry, hardware, tensor_parallel_size)


def estimate_kv_tokens(model: str, gpu: str, tensor_parallel_size: int = 1) -> int:
    """Estimate the tokens for which vLLM has room in the GPU's memory beside the weights, in round thousands.

    Raises InputError without preset or room.
    """
    shape, hardware = _find_preset(model, gpu)
    _check_split(model, shape, gpu, hardware, tensor_parallel_size)
    number_bytes = DTYPE_BYTES[hardware.dtype]
    weights = count_parameters(shape) * number_bytes / tensor_parallel_size
    free = hardware.memory_bytes * MEMORY_SHARE - weights - WORKSPACE_SHARE * hardware.memory_bytes
    token_bytes = sum(
        _count_key_numbers(layers, tensor_parallel_size) * number_bytes
        for layers in shape.geometry.attention
        if not layers.shares_cache
    )
    tokens = int(free / token_bytes) // 1000 * 1000
    if tokens < 1000:
        raise InputError(
            f"--kv-tokens: {model} leaves no room for a cache on {tensor_parallel_size} {gpu}; raise "
            "tensor_parallel_size, or give the number of tokens"
        )
    return tokens


def _count_key_numbers(layers: AttentionLayers, ranks: int) -> int:
    """Count the numbers that one of so many ranks keeps of a token."""
    # Beyond one KV head a rank, heads are copied rather than split.
    return layers.layers * max(layers.kv_heads // ranks, 1) * layers.head_numbers


def find_measured_profile(model: str, gpu: str, tensor_parallel_size: int = 1) -> CostProfile | None:
    """Find the profile that comes with agentcache, None if there is none. Raises InputError when its file is broken."""
    key = _make_key(name_known(model), gpu, tensor_parallel_size)
    path = PROFILES / key.file_name
    return read_profile(path) if path.is_file() else None


def name_known(model: str) -> str:
    """Return the name of the shape that costs as much as the model; its own where there is none."""
    if model in PRESETS:
        return model
    geometry = read_shape(model).geometry
    return next((name for name, known in SHAPES.items() if known.geometry == geometry), model)


def estimate_step_cost(geometry: Geometry, hardware: Gpu, ranks: int = 1) -> StepCost:
    """Estimate for any geometry on any hardware, split over `ranks` GPUs, whether it fits or not.

    Every expert is read in each step, as it is when many tokens choose.
    """
    number_bytes = DTYPE_BYTES[hardware.dtype]
    flops_s = hardware.flops_s * COMPUTE_EFFICIENCY * ranks
    bandwidth_s = hardware.bandwidth_s * BANDWIDTH_EFFICIENCY
    head = geometry.vocabulary * geometry.hidden
    # Every rank sends and receives 2·(ranks−1)/ranks of the hidden states in a ring all-reduce, twice a layer.
    link_bytes = 2 * geometry.layers * geometry.hidden * number_bytes * 2 * (ranks - 1) / ranks
    all_reduces_s = 2 * geometry.layers * ALL_REDUCE_LATENCY_S if ranks > 1 else 0.0

    def count_flops(layers: AttentionLayers) -> int:
        return 2 * layers.layers * layers.pair_products

    def count_key_bytes(layers: AttentionLayers) -> int:
        return _count_key_numbers(layers, ranks) * number_bytes

    recurrent = geometry.recurrent
    states = 0 if recurrent is None else recurrent.layers * recurrent.state_numbers
    state_bytes = (recurrent and recurrent.state_bytes) or number_bytes
    full = [layers for layers in geometry.attention if layers.window is None]
    return StepCost(
        overhead_s=hardware.step_overhead_s + all_reduces_s,
        prefill_overhead_s=0.0 if recurrent is None else recurrent.layers * RECURRENT_PREFILL_S,
        weights_read_s=(geometry.layer_parameters + head) * number_bytes / ranks / bandwidth_s,
        token_s=2 * (geometry.active_parameters + _STATE_PRODUCTS * states) / flops_s,
        token_link_s=link_bytes / (hardware.link_s * LINK_EFFICIENCY),
        head_s=2 * head / flops_s,
        pair_s=sum(map(count_flops, full)) / flops_s,
        kv_read_s=sum(map(count_key_bytes, full)) / bandwidth_s,
        windows=tuple(
            WindowCost(layers.window, count_flops(layers) / flops_s, count_key_bytes(layers) / bandwidth_s)
            for layers in geometry.attention
            if layers.window is not None
        ),
        # Read and written once.
        state_s=2 * states * state_bytes / ranks / bandwidth_s,
    )


def find_cost_profile(model: str, gpu: str, tensor_parallel_size: int = 1) -> CostProfile:
    """Find a measured one if there is a profile, else one fitted to prefills that the analytic step cost predicts."""
    step_cost = find_step_cost(model, gpu, tensor_parallel_size)
    measured = find_measured_profile(model, gpu, tensor_parallel_size)
    if measured is not None:
        return measured
    fitted = estimate_cost_model(step_cost)
    batches = len(fitted.residuals)
    return CostProfile(
        key=_make_key(model, gpu, tensor_parallel_size),
        measured=False,
        source=f"estimated, not measured: {GPUS[gpu].source}",
        batches=batches,
        r_squared=fitted.r_squared,
        cost_model=fitted.cost_model,
        steps=StepProfile(count=batches, r_squared=1.0, step_cost=step_cost),
    )


def _make_key(model: str, gpu: str, ranks: int) -> ProfileKey:
    return ProfileKey(model=model, gpu=gpu, tensor_parallel_size=ranks, dtype=GPUS[gpu].dtype)


def estimate_cost_model(step_cost: StepCost) -> FittedCostModel:
    """Fit the paper's cost model to prefills that `step_cost` predicts."""
    # l1 stays short: the model charges its square although it is cached, which would spoil k5 and so the blocks' cost.
    lengths = itertools.product((0, 256, 1024), (512, 2048, 8192), (0, 4096, 16384), (0, 512, 4096))
    return fit_cost_model([_predict_batch(step_cost, *segments) for segments in lengths])


def _predict_batch(step_cost: StepCost, l1: int, q1: int, l2: int, q2: int) -> PrefillBatch:
    rows = [Row(query, context) for query, context in ((q1, l1), (q2, l1 + q1 + l2)) if query]
    return PrefillBatch(l1, q1, l2, q2, step_cost.step_s(rows))


def _find_preset(model: str, gpu: str) -> tuple[Shape, Gpu]:
    check_preset(model, gpu)
    return PRESETS[model][0] if model in PRESETS else read_shape(model), GPUS[gpu]


def check_preset(model: str, gpu: str) -> None:
    """Raise InputError for a GPU without a data sheet here, and for what can be no model. Loads nothing."""
    missing = f"no preset for model {model} on gpu {gpu}"
    gpus = PRESETS[model][1] if model in PRESETS else _DATA_SHEETS
    if gpu not in gpus:
        begun = " or ".join(each for each in gpus if each.startswith(gpu))
        meant = f"; did you mean {begun}?" if begun else suggest(gpu, gpus)
        raise InputError(
            f"{missing}{meant}; GPUs of that model are {', '.join(gpus)}; for another one run "
            "`agentcache profile MODEL` on it, and give --profile"
        )
    if model not in PRESETS and not is_published(model):
        raise InputError(
            f"{missing}{suggest(model, PRESETS)}; models are {', '.join(PRESETS)}, a folder with a config.json, and "
            "OWNER/NAME of Hugging Face; for what else vLLM serves run `agentcache profile MODEL`, and give --profile"
        )


def _check_split(model: str, shape: Shape, gpu: str, hardware: Gpu, ranks: int) -> None:
    if ranks < 1 or shape.heads % ranks:
        raise InputError(f"tensor_parallel_size {ranks}: must divide the {shape.heads} attention heads of {model}")
    weights = count_parameters(shape) * DTYPE_BYTES[hardware.dtype]
    if weights / ranks >= hardware.memory_bytes:
        raise InputError(
            f"tensor_parallel_size {ranks}: {model} has {weights / 1e9:.1f} GB of weights, which leaves no room for a "
            f"cache in {ranks} x {hardware.memory_bytes / 1e9:.0f} GB of {gpu}; raise it"
        )
