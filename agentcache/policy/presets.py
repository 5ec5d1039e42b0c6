"""Finds what steps and prefills take on known GPUs: as measured where there is a profile, else from data sheets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from agentcache.errors import InputError, suggest
from agentcache.models.geometry import AttentionLayers, Geometry
from agentcache.models.shapes import SHAPES, SMALL, Shape
from agentcache.policy.cost import (
    CostProfile,
    FittedCostModel,
    PrefillBatch,
    ProfileKey,
    fit_cost_model,
    read_profile,
)
from agentcache.policy.step_cost import Row, StepCost, WindowCost

# What `agentcache profile` measured, one file a ProfileKey. Where there is one, it goes before the data sheet.
PROFILES = Path(__file__).with_name("profiles")

# Share of the data sheet that kernels reach. Compute: chosen so that prefill of Llama-3.1-8B on an H200 under vLLM 0.32
# comes out as measured (see `find_step_cost`); on other GPUs it is a guess. Bandwidth and links: usual values.
COMPUTE_EFFICIENCY = 0.62
BANDWIDTH_EFFICIENCY = 0.8
LINK_EFFICIENCY = 0.8
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


@dataclass(frozen=True, slots=True)
class Gpu:
    """Data-sheet numbers: dense FLOP/s in `dtype`, bytes/s of memory and of one direction of the links, bytes.

    `step_overhead_s` is what a step takes beside the model: scheduling, launches, sampling.
    """

    flops_s: float
    bandwidth_s: float
    link_s: float
    memory_bytes: float
    step_overhead_s: float
    dtype: str = "bfloat16"


GPUS = {
    # Source: NVIDIA's data sheets of the H20, H100 SXM and H200 SXM. The overhead is a usual value with CUDA graphs.
    "h20": Gpu(148e12, 4.0e12, 450e9, 96e9, 1e-3),
    "h100": Gpu(989e12, 3.35e12, 450e9, 80e9, 1e-3),
    "h200": Gpu(989e12, 4.8e12, 450e9, 141e9, 1e-3),
    # Two server cores. FLOP/s and overhead are chosen by a run of the tiny model, eager, under vLLM 0.32: 1,024 tokens
    # took 21 ms (16 come out), 8,192 took 508 ms (507), 16,384 took 1.93 s (1.90), a decode step 2.0 ms (1.9).
    "cpu": Gpu(0.125e12, 20e9, 10e9, 8e9, 1.6e-3, dtype="float32"),
}
# Which GPUs each model has a preset for. A data-sheet number for the dtype is what decides.
PRESETS: dict[str, tuple[Shape, tuple[str, ...]]] = {
    **{name: (shape, ("h20", "h100", "h200")) for name, shape in SHAPES.items()},
    **{name: (shape, ("cpu",)) for name, shape in SMALL.items()},
}


def count_parameters(shape: Shape) -> int:
    """Count the whole model: layers, embeddings, output head, last norm."""
    tables = 1 if shape.tied_embeddings else 2
    return shape.geometry.layer_parameters + tables * shape.vocabulary * shape.hidden + shape.hidden


def match_gpu(device_name: str) -> str | None:
    """Find the preset whose GPU a driver calls so, as in "NVIDIA H200"; None when there is none."""
    # The longest first: "h20" is in "h200".
    return next((gpu for gpu in sorted(GPUS, key=len, reverse=True) if gpu in device_name.lower()), None)


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
    key = _make_key(model, gpu, tensor_parallel_size)
    path = PROFILES / key.file_name
    return read_profile(path) if path.is_file() else None


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
    return CostProfile(
        key=_make_key(model, gpu, tensor_parallel_size),
        measured=False,
        source="analytic preset: peak FLOP/s, bandwidth and layer geometry",
        batches=len(fitted.residuals),
        r_squared=fitted.r_squared,
        cost_model=fitted.cost_model,
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
    shape, gpus = PRESETS.get(model, (None, ()))
    missing = f"no preset for model {model} on gpu {gpu}"
    if shape is None:
        raise InputError(f"{missing}{suggest(model, PRESETS)}; models are {', '.join(PRESETS)}")
    if gpu not in gpus:
        raise InputError(f"{missing}; GPUs of that model are {', '.join(gpus)}")
    return shape, GPUS[gpu]


def _check_split(model: str, shape: Shape, gpu: str, hardware: Gpu, ranks: int) -> None:
    if ranks < 1 or shape.heads % ranks:
        raise InputError(f"tensor_parallel_size {ranks}: must divide the {shape.heads} attention heads of {model}")
    weights = count_parameters(shape) * DTYPE_BYTES[hardware.dtype]
    if weights / ranks >= hardware.memory_bytes:
        raise InputError(
            f"tensor_parallel_size {ranks}: {model} has {weights / 1e9:.1f} GB of weights, which leaves no room for a "
            f"cache in {ranks} x {hardware.memory_bytes / 1e9:.0f} GB of {gpu}; raise it"
        )
