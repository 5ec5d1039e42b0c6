"""What the recordings tell of the run that is to come, for the policy that knows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

from agentcache.jobs.recorded_job import RecordedJob
from agentcache.policy.presets import Row
from agentcache.sim.belady import evict_by_future
from agentcache.sim.engine import SimulatedEngine
from agentcache.sim.future import FutureJob, FutureUses, hash_prompts
from agentcache.sim.gpu import StepModel
from agentcache.sim.prompts import PromptWriter


def make_clairvoyant(
    engine: SimulatedEngine, jobs: Sequence[RecordedJob], prompts: PromptWriter, gpu: StepModel
) -> FutureUses:
    """Let the engine, which has seen no request, evict by the future of these jobs; the runner must tell it on."""
    future = FutureUses([_foresee(recorded, engine, prompts, gpu) for recorded in jobs])
    scheduler = engine.scheduler
    evict_by_future(scheduler, future, engine.clock.now, segments=scheduler.gap_filler is not None)
    return future


def _foresee(recorded: RecordedJob, engine: SimulatedEngine, prompts: PromptWriter, gpu: StepModel) -> FutureJob:
    hashes = list(hash_prompts(prompts.write(recorded), engine.block_size, engine.hash_block))
    return FutureJob(recorded.job.id, hashes, list(_estimate_gaps(recorded, hashes, engine.block_size, gpu)))


def _estimate_gaps(
    recorded: RecordedJob, prompts: Sequence[Sequence[bytes]], block_size: int, gpu: StepModel
) -> Iterator[float]:
    """Estimate the seconds from each request to the next if it were alone and hit all that the one before it left."""
    for number, (before, prompt) in enumerate(pairwise([[], *prompts[:-1]])):
        turn = recorded.job.turns[number]
        hit = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, prompt, strict=False)))
        tokens, computed = len(prompt) * block_size, max(1, (len(prompt) - hit) * block_size)
        prefill_s = gpu.step_s([Row(computed, tokens - computed)])
        decode_s = (len(recorded.reply(number)) - 1) * gpu.step_s([Row(1, tokens)])
        yield prefill_s + decode_s + max((result.duration_s for result in turn.results), default=0.0) + turn.pause_s
