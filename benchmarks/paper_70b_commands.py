"""The commands of `paper_70b.py`'s rows, and what they take from its profile: costs, and the rate of conversations."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path

from convert import convert
from paper_70b_rows import PROFILE, REPLIES, SESSIONS, Row

from agentcache.models.catalog import SHAPE_PREFIX
from agentcache.policy.cost import CostProfile, read_profile
from agentcache.policy.gpus import GPUS
from agentcache.policy.presets import DTYPE_BYTES, PRESETS, find_cost_profile

ROOT = Path(__file__).parents[1]
BFCL_RATE, BFCL_TOKENS = 0.45, 250_000
# The paper's system and its cache; the mean prompt of its LooGLE; sessions a second that keep its GPUs half busy.
PAPER, PAPER_TOKENS, PAPER_PROMPT, PAPER_RATE = ("llama-3.1-70b", "h20", 4), 505_152, 24_400, 0.01
# The longest prompt of a profile.
PROFILED_TOKENS = 65_536
# Low dispersion; the 99th percentile of pauses, Gamma with a CV of 0.25, is 1.67 times their mean.
DISPERSION, P99 = 5, 1.67
# LooGLE has five documents: with as many copies of each about two sessions share one.
COPIES, REPLY_TOKENS = 5, 700
TESTS = {"cpu": "tests/segments/test_parallel_exactness.py", "gpu": "tests/gpu/test_paper_70b.py"}


def list_words(row: Row, options: Namespace) -> list[str]:
    """Return what Python runs for a row."""
    ranks = ["--tensor-parallel-size", str(options.tensor_parallel_size)]
    if row.workload == REPLIES:
        test = ROOT / TESTS["cpu" if options.gpu == "cpu" else "gpu"]
        return ["-m", "pytest", "-p", "no:cacheprovider", os.path.relpath(test)]
    model = options.model if options.simulate else name_model(options)
    out = ["--out", str(options.out / row.name), "--overwrite"]
    if row.workload == PROFILE:
        sizes = ["--budget-s", str(options.profile_s), "--max-tokens", str(round(options.scale * PROFILED_TOKENS))]
        return ["-m", "agentcache", "profile", model, *out, *sizes, "--", *ranks]
    words = [*list_load(row, options), "--seed", str(row.seed), "--model", model, "--policy", row.policy, *out]
    if options.simulate:
        cpu = ["--cpu-tokens", str(count_cpu_tokens(row, options))] * row.cached
        lazy = ["--cpu-lazy"] * (row.cached and row.policy == "vllm")
        return ["-m", "agentcache", "simulate", *words, "--gpu", options.gpu, *ranks, *cpu, *lazy]
    costs = find_profile(options)
    knob = ["--agentcache", f"cost_profile={costs}"] if costs else []
    return ["-m", "agentcache", "replay", *words, *knob, "--", *ranks, *list_cpu_options(row, options)]


def name_model(options: Namespace) -> str:
    """As an engine is to be told."""
    return options.model if options.model == "tiny" else SHAPE_PREFIX + options.model


def list_load(row: Row, options: Namespace) -> list[str]:
    if row.workload != SESSIONS:
        tokens, rate = options.scale * BFCL_TOKENS, options.faster * BFCL_RATE
        load = f"--jobs {options.jobs} --rate {rate:g} --arrival poisson --scale {options.scale:g}".split()
        return ["bfcl", *load, "--kv-tokens", str(round(tokens))]
    rate = find_rate(options)
    cache = ["--kv-tokens", str(round(options.scale * PAPER_TOKENS))]
    lifespan = ["--agentcache", f"lifespan_s={find_lifespan(rate)}"]
    return [f"recording:{write_sessions(row, options, rate)}", *cache, *lifespan]


def find_lifespan(rate: float) -> float:
    return round(P99 * DISPERSION / rate, 1)


def count_cpu_tokens(row: Row, options: Namespace) -> int:
    return round(options.scale * BFCL_TOKENS) if row.cached else 0


def list_cpu_options(row: Row, options: Namespace) -> list[str]:
    """A size over all ranks: of ours, and of vLLM's connector that stores what is about to be evicted."""
    if not row.cached:
        return []
    shape, tokens = PRESETS[options.model][0], count_cpu_tokens(row, options)
    numbers = sum(each.layers * each.kv_heads * each.head_numbers for each in shape.geometry.attention)
    size = tokens * numbers * DTYPE_BYTES[GPUS[options.gpu].dtype]
    if row.policy != "vllm":
        # Of a small trial: the cache has to hold a whole context.
        shorter = ["--max-model-len", str(tokens)] * (tokens < shape.max_tokens)
        return ["--kv-offloading-size", str(size / 2**30), *shorter]
    extra = {"cpu_bytes_to_use": size, "lazy_offload": True}
    config = {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return ["--kv-transfer-config", json.dumps(config)]


def find_profile(options: Namespace) -> Path | None:
    # Its points are .jsonl.
    return next((options.out / PROFILE).glob("*.json"), None)


def read_costs(options: Namespace) -> CostProfile:
    """Read the profile, or where there is none estimate it by the data sheet."""
    found = None if options.simulate else find_profile(options)
    if found is not None:
        return read_profile(found)
    return find_cost_profile(options.model, options.gpu, options.tensor_parallel_size)


def time_prompt(costs: CostProfile, options: Namespace) -> float:
    """The seconds of the paper's mean prompt. Raises ValueError where the profile cannot tell."""
    seconds = costs.cost_model.predict(0, round(options.scale * PAPER_PROMPT), 0, 0)
    if seconds <= 0:
        raise ValueError(f"{costs.key}: a prompt takes {seconds:g} s by its costs; measure for longer (--profile-s)")
    return seconds


def find_rate(options: Namespace) -> float:
    """Sessions a second: as many more than the paper's as these GPUs compute a prompt sooner. Kept: equal for all."""
    kept = options.out / "sessions_per_second"
    if not kept.exists():
        times = time_prompt(find_cost_profile(*PAPER), options) / time_prompt(read_costs(options), options)
        kept.write_text(f"{options.faster * PAPER_RATE * times:.3g}\n", encoding="utf-8")
    return float(kept.read_text(encoding="utf-8"))


def write_sessions(row: Row, options: Namespace, rate: float) -> Path:
    """Write the seed's conversations about copies of the documents, a number in front of each."""
    recording: Path = options.out / f"{SESSIONS}-{row.seed}.jsonl"
    if not recording.exists():
        entries = [json.loads(line) for line in options.documents.read_text(encoding="utf-8").splitlines()]
        copies = options.out / f"{SESSIONS}.jsonl"
        numbered = [
            json.dumps(entry | {"input": f"Copy {number}.\n\n{entry['input']}"})
            for number in range(1, COPIES + 1)
            for entry in entries
        ]
        copies.write_text("\n".join(numbered) + "\n", encoding="utf-8")
        load = f"--jobs {options.jobs} --turns 6 --least-turns 3 --rate {rate:g} --dispersion {DISPERSION}".split()
        sizes = f"--scale {options.scale:g} --reply-tokens {max(1, round(options.scale * REPLY_TOKENS))}".split()
        own = ["--model", name_model(options), "--seed", str(row.seed), "--out", str(recording)]
        convert(["conversation", str(copies), *load, *sizes, *own])
    return recording
