"""The engines of one simulated run, under a clock of their own; the clairvoyant policy is told what will come."""

from __future__ import annotations

from collections.abc import Sequence

from agentcache.jobs.recorded_job import RecordedJob
from agentcache.run.checks import CLAIRVOYANT
from agentcache.sim.clairvoyance import make_clairvoyant
from agentcache.sim.clock import VirtualClock
from agentcache.sim.engine import EngineShape, SimulatedEngine
from agentcache.sim.gpu import StepModel
from agentcache.sim.known_hashes import MadeHashes
from agentcache.sim.prompts import PromptWriter
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

    That policy knows the first engine's alone. `hashes` are kept from run to run of the same jobs. Raises InputError
    for what vLLM refuses.
    """
    knows_future = policy == CLAIRVOYANT
    clock = VirtualClock()
    name = "lru" if knows_future else policy
    engines = [SimulatedEngine(shape, name, gpu, clock, hashes=hashes) for _ in range(count)]
    return engines, make_clairvoyant(engines[0], jobs, prompts, gpu) if knows_future else None
