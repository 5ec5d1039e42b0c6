"""Makes the engines of one simulated run, under one clock; the clairvoyant policy gets the future as well."""

from __future__ import annotations

from collections.abc import Sequence

from agentcache.jobs.recorded_job import PromptWriter, RecordedJob
from agentcache.run.checks import CLAIRVOYANT, refuse_two_caches
from agentcache.sim.belady import make_clairvoyant
from agentcache.sim.clock import VirtualClock
from agentcache.sim.costs import StepModel
from agentcache.sim.engine import SimulatedEngine
from agentcache.sim.engine_shape import EngineShape
from agentcache.sim.known_hashes import MadeHashes
from agentcache.sim.runner import Future


def make_engines(
    policy: str,
    shape: EngineShape,
    gpu: StepModel,
    jobs: Sequence[RecordedJob],
    prompts: PromptWriter,
    *,
    count: int = 1,
    hashes: dict[str, MadeHashes] | None = None,
) -> tuple[list[SimulatedEngine], Future | None]:
    """Make `count` engines, and what the runner must tell of these jobs, if the policy knows the future.

    That policy knows the future of one engine, and gets one. `hashes` are kept from run to run of the same jobs.

    Raises InputError for what vLLM refuses, and for that policy with a CPU cache.
    """
    clock = VirtualClock()
    if policy != CLAIRVOYANT:
        return [SimulatedEngine(shape, policy, gpu, clock, hashes=hashes) for _ in range(count)], None
    refuse_two_caches([policy], shape.host_tokens)
    engine = SimulatedEngine(shape, "lru", gpu, clock, hashes=hashes)
    return [engine], make_clairvoyant(engine, jobs, prompts, gpu)
