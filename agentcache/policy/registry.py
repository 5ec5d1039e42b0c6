"""Registers the policies by the names that users type, and makes their evictors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from agentcache._evictor import (
    AsymCacheEvictor,
    Evictor,
    LruEvictor,
    MaxScoreEvictor,
    PensieveEvictor,
    ReturnTimeEvictor,
    ReturnWaits,
)
from agentcache.errors import InputError, suggest
from agentcache.policy.lifespan import Frequency, LambdaController, LifespanEstimator
from agentcache.policy.price import RecomputeCost
from agentcache.policy.runtime_policy import Order, RuntimePolicy

# Added to every wait for a return: differences far below it do not count. Chosen with the evictor's other settings, on
# 32 Claude Code sessions and BFCL seeds 0 to 2.
LEAST_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class EvictorInputs:
    """The cache's size in blocks, the cost of losing one, and how its reuse depends on time.

    `step_s` are the seconds of a step with one token: what each token of a reply takes, alone on the engine.
    `fills_gaps`: whether blocks behind a lost one can be used still. `waits` are the same for all caches.
    """

    num_blocks: int
    recompute_cost: RecomputeCost
    step_s: float
    frequency: Frequency
    lifespan: LifespanEstimator
    lambda_limit: float
    waits: ReturnWaits = field(default_factory=lambda: ReturnWaits(least_wait_s=LEAST_WAIT_S))
    fills_gaps: bool = True

    @property
    def compared_recompute_cost(self) -> RecomputeCost:
        """The cost as evictors are to know it.

        Where gaps are not filled, the cheapest block of a request, its first, would take all behind it along. So all
        cost the same, and of a request the last goes first.
        """
        return (
            self.recompute_cost
            if self.fills_gaps
            else RecomputeCost(slope_s=0.0, base_s=0.0, floor_s=self.recompute_cost.floor_s)
        )


GetInputs = Callable[[], EvictorInputs]


@dataclass(frozen=True, slots=True)
class Policy:
    """A way for the engine to behave. `make_evictor` is None where vLLM's own free list stays.

    It asks for the inputs only if it needs them: a policy that knows no costs serves models without a cost model too.
    `segments` and `chunking`: whether multi-segment reuse and adaptive chunking come with it. `runtime` is what the
    agent runtime does; None is no runtime at all. `steers_tier`: whether the policy can steer a CPU cache.
    """

    name: str
    summary: str
    make_evictor: Callable[[GetInputs], Evictor] | None
    segments: bool = False
    chunking: bool = False
    runtime: RuntimePolicy | None = None
    steers_tier: bool = False


def _make_lru(_: GetInputs) -> Evictor:
    return LruEvictor()


def _make_asymcache(get_inputs: GetInputs) -> Evictor:
    inputs = get_inputs()
    return AsymCacheEvictor(
        num_blocks=inputs.num_blocks,
        **asdict(inputs.frequency),
        **asdict(inputs.compared_recompute_cost),
        controller=LambdaController(inputs.frequency, inputs.lifespan, inputs.lambda_limit).observe,
    )


def _make_agentcache(get_inputs: GetInputs) -> Evictor:
    inputs = get_inputs()
    return ReturnTimeEvictor(num_blocks=inputs.num_blocks, **asdict(inputs.compared_recompute_cost), waits=inputs.waits)


def _make_max_score(get_inputs: GetInputs) -> Evictor:
    inputs = get_inputs()
    return MaxScoreEvictor(num_blocks=inputs.num_blocks, **asdict(inputs.frequency))


def _make_pensieve(get_inputs: GetInputs) -> Evictor:
    inputs = get_inputs()
    return PensieveEvictor(num_blocks=inputs.num_blocks, **asdict(inputs.compared_recompute_cost))


_FACTORS = RuntimePolicy(factors=True)
_RELEASED = RuntimePolicy(
    ttl="released", pin_rank="deadline", wait_for_pins="always", order=Order(), victim="latest job"
)
# Mean job latency is traded against the time to first token. Chosen by simulations of BFCL's seeds 0 to 9: a reserve of
# none, 0.1 and 0.25; of seeds 0, 1 and 4: patience of 8, 10, 15, 20 and 30 s, juniors of 0.65 to 0.9; seniority on
# seeds 0 to 2 and 10 to 12. A recompute share of 0.15, 0.25 and 0.4 by closed loops, seeds 0 and 1.
_FOR_JOBS = Order(seniority_s=12.0, patience_s=15.0, least_wait_s=1.0, reserve=0.25, juniors=0.8, recompute_share=0.25)
_OURS = RuntimePolicy(
    ttl="hazard",
    pin_rank="job arrival",
    wait_for_pins="weighed",
    protect_waiting=True,
    order=_FOR_JOBS,
    victim="cheapest",
)
_PUBLISHED = RuntimePolicy(ttl="published", pin_rank="job arrival", order=Order(), victim="latest job")
_AGENTCACHE = Policy(
    "agentcache",
    "least cost over the learnt wait for reuse first, pins that weigh their price, order of jobs with ageing",
    _make_agentcache,
    segments=True,
    chunking=True,
    runtime=_OURS,
    steers_tier=True,
)


def _change_order(name: str, summary: str, order: Order) -> Policy:
    """Return `agentcache` with another order of jobs."""
    return replace(_AGENTCACHE, name=name, summary=summary, runtime=replace(_OURS, order=order))


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("vllm", "stock vLLM, nothing replaced", None),
        Policy("lru", "our block queue, least recently used first; equals vllm", _make_lru),
        Policy(
            "observe",
            "stock vLLM's order and evictions; jobs are followed, so that reports show what they would gain",
            _make_lru,
            runtime=RuntimePolicy(),
        ),
        _AGENTCACHE,
        _change_order(
            "agentcache-interactive",
            "the same, but requests wait for at most 8 s, not 15: sooner first tokens, later jobs",
            replace(_FOR_JOBS, patience_s=8.0, recompute_share=0.0),
        ),
        _change_order(
            "agentcache-throughput",
            "the same, but where jobs want more than the caches hold turns wait without a limit: most tokens a second",
            replace(_FOR_JOBS, recompute_share=0.15, longest_wait_s=math.inf),
        ),
        Policy(
            "asymcache",
            "least expected recomputation cost first",
            _make_asymcache,
            segments=True,
            chunking=True,
            runtime=_FACTORS,
        ),
        Policy("continuum-code", "LRU, 2 s pins after fast tools, order of jobs", _make_lru, runtime=_RELEASED),
        Policy("continuum-paper", "LRU, pins by the paper's model, order of jobs", _make_lru, runtime=_PUBLISHED),
        Policy(
            "continuum+asymcache",
            "continuum-paper's pins and order over asymcache",
            _make_asymcache,
            segments=True,
            chunking=True,
            runtime=replace(_PUBLISHED, factors=True),
        ),
        Policy("max-score", "least likely to be reused first, whatever it costs; O(n)", _make_max_score),
        Policy("pensieve", "least cost over idle time first; O(n)", _make_pensieve, segments=True),
    )
}
DEFAULT_POLICY = "agentcache"


def find_policy(name: str) -> Policy:
    """Find a policy. Raises InputError for a name that none has."""
    try:
        return POLICIES[name]
    except KeyError:
        choices = ", ".join(POLICIES)
        raise InputError(f"--policy {name}: unknown; choose from {choices}{suggest(name, POLICIES)}") from None


def with_evictor(policy: Policy, name: str | None) -> Policy:
    """Return the policy with the evictor of another one; itself for None. Raises InputError if one of them has none."""
    if name is None:
        return policy
    if policy.make_evictor is None:
        raise InputError(f"evictor={name}: policy {policy.name} leaves vLLM's free list as it is; give another policy")
    owners = [owner.name for owner in POLICIES.values() if owner.make_evictor is not None]
    if name not in owners:
        raise InputError(f"evictor={name}: no policy's evictor; choose from {', '.join(owners)}{suggest(name, owners)}")
    return replace(policy, make_evictor=POLICIES[name].make_evictor)
