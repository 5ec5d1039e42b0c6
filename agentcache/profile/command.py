"""Runs `agentcache profile`: measures, fits, saves."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rich.console import Console

from agentcache.engine.blocks.evictor_inputs import make_profile_key
from agentcache.engine.vllm.base import VllmConfig, current_platform
from agentcache.engine.vllm.compat import check_vllm, installed_version
from agentcache.errors import INTERRUPTED, AgentCacheError, InputError
from agentcache.output_folder import check_free
from agentcache.policy.cost import (
    MIN_BATCHES,
    CostProfile,
    FittedCostModel,
    PrefillBatch,
    ProfileKey,
    StepProfile,
    fit_cost_model,
    save_profile,
)
from agentcache.policy.link_profile import LinkProfile
from agentcache.policy.step_fit import FittedStepCost, MeasuredStep, fit_step_cost
from agentcache.profile.bench_engine import BenchEngine, make_bench_config
from agentcache.profile.display import print_fits, show_progress
from agentcache.profile.link import measure_link
from agentcache.profile.measurer import Measurer, Sample
from agentcache.profile.points import Limits, Point, PointSource
from agentcache.profile.settings import ProfileSettings
from agentcache.run.folder import divert_output

ENGINE_LOG = "profile.log"
_LONGEST_GPU, _LONGEST_CPU = 65_536, 8_192
# Contexts of all decodes of a batch together: they must be computed first, at the cost of the budget.
_BATCH_TOKENS_GPU, _BATCH_TOKENS_CPU = 262_144, 32_768


@dataclass(frozen=True, slots=True)
class Measured:
    """The samples that fits are made of, and the tokens that vLLM had room for in its cache.

    `interrupted`: by Ctrl-C, before the budget or the points were through.
    """

    points: int
    batches: Sequence[PrefillBatch]
    steps: Sequence[MeasuredStep]
    kv_tokens: int | None
    interrupted: bool


def profile(settings: ProfileSettings) -> int:
    """Return the exit status: 0, or 130 after Ctrl-C, when the fits are made of what was measured until then.

    Writes the profile and what it is made of to `settings.out`. Raises InputError or ServerError.
    """
    settings.check()
    check_vllm()
    with divert_output(Path(os.devnull)):
        config = make_bench_config(settings.model, settings.engine_options)
    key = make_profile_key(settings.model_name, None, config)
    # A folder is for profiles of several engines.
    check_free(settings.out, [key.file_name], f"profile of {key}", overwrite=settings.overwrite)
    settings.out.mkdir(parents=True, exist_ok=True)
    path = settings.out / key.file_name
    points_file = path.with_suffix(".points.jsonl")
    with divert_output(settings.out / ENGINE_LOG) as terminal:
        console = Console(file=terminal)
        # Before the engine takes the GPU's memory.
        link = measure_link(config, path.with_suffix(".link.jsonl"), console)
        console.print(f"{key}: starting the engine (its log: {settings.out / ENGINE_LOG})", markup=False)
        measured = _measure(settings, config, points_file, console)
        if len(measured.batches) < MIN_BATCHES:
            raise InputError(
                f"--budget-s {settings.budget_s:g}: {len(measured.batches)} prefills were measured; a fit needs "
                f"at least {MIN_BATCHES}, give it more time"
            )
        prefills, steps = fit_cost_model(measured.batches), fit_step_cost(measured.steps)
        print_fits(console, prefills, steps)
        save_profile(_make_profile(key, prefills, steps, measured, link), settings.out)
        console.print(f"profile: {path}\npoints: {points_file}", markup=False, highlight=False)
    return INTERRUPTED if measured.interrupted else 0


def _measure(settings: ProfileSettings, config: VllmConfig, points_file: Path, console: Console) -> Measured:
    bench = BenchEngine(config)
    samples: list[Sample] = []
    interrupted = False
    try:
        console.print(f"engine ready after {bench.startup_s:.0f} s")
        limits = _find_limits(settings, bench)
        measurer = Measurer(bench, limits, settings.seed)
        deadline_s = time.monotonic() + settings.budget_s
        points = PointSource(limits, settings.seed).make(settings.points)
        measurer.prepare()
        with points_file.open("w", encoding="utf-8") as file, show_progress(console, len(points)) as advance:
            for sample in _run_points(points, measurer, deadline_s):
                samples.append(sample)
                file.write(_to_json(sample) + "\n")
                file.flush()
                advance()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        bench.close()
    console.print(f"measured {len(samples)} of {settings.points} points{' until Ctrl-C' if interrupted else ''}")
    batches = [sample.batch for sample in samples if sample.batch is not None]
    steps = [step for sample in samples for step in sample.steps]
    return Measured(len(samples), batches, steps, bench.kv_tokens, interrupted)


def _run_points(points: Sequence[Point], measurer: Measurer, deadline_s: float) -> Iterator[Sample]:
    for point in points:
        if time.monotonic() > deadline_s:
            return
        try:
            yield measurer.measure(point)
        except AgentCacheError as error:
            raise type(error)(f"while measuring {point}: {error}") from error


def _find_limits(settings: ProfileSettings, bench: BenchEngine) -> Limits:
    """Find what the engine can take. Raises InputError when it is too small for --max-tokens."""
    on_cpu = current_platform.is_cpu()
    # The long prompt takes its share of the cache beside what is new in every measurement.
    room = min(bench.max_tokens, bench.cache_tokens // 3)
    wanted = settings.max_tokens or min(room, _LONGEST_CPU if on_cpu else _LONGEST_GPU)
    if wanted > room:
        raise InputError(
            f"--max-tokens {wanted}: the engine takes {bench.max_tokens} and caches {bench.cache_tokens} tokens, "
            f"of which a third is for the longest prompt; give at most {room}"
        )
    return Limits(
        max_tokens=wanted,
        step_tokens=bench.step_tokens,
        batch_tokens=min(bench.cache_tokens // 3, _BATCH_TOKENS_CPU if on_cpu else _BATCH_TOKENS_GPU),
        max_seqs=bench.max_seqs,
        block_size=bench.block_size,
    )


def _make_profile(
    key: ProfileKey, prefills: FittedCostModel, steps: FittedStepCost, measured: Measured, link: LinkProfile | None
) -> CostProfile:
    device = "CPU backend" if current_platform.is_cpu() else current_platform.get_device_name()
    return CostProfile(
        key=key,
        measured=True,
        source=f"agentcache profile on {device}, vLLM {installed_version()}, {date.today()}, {measured.points} points",
        batches=len(prefills.residuals),
        r_squared=prefills.r_squared,
        cost_model=prefills.cost_model,
        steps=StepProfile(count=len(steps.residuals), r_squared=steps.r_squared, step_cost=steps.step_cost),
        link=link,
        kv_tokens=measured.kv_tokens,
    )


def _to_json(sample: Sample) -> str:
    """Return rows as [query, context], so that another form of model can be fitted later."""
    return json.dumps({"point": sample.point._asdict(), "steps": [[step.rows, step.seconds] for step in sample.steps]})
