"""The policies by the names that users type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from agentcache.errors import InputError
from agentcache.policy.asymcache import AsymCacheEvictor
from agentcache.policy.asymcache_linear import AsymCacheLinearEvictor
from agentcache.policy.evictor import Evictor
from agentcache.policy.grouped import GroupedEvictor
from agentcache.policy.inputs import EvictorInputs
from agentcache.policy.lifespan import LambdaController
from agentcache.policy.lru import LruEvictor
from agentcache.policy.max_score import MaxScoreEvictor
from agentcache.policy.pensieve import PensieveEvictor
from agentcache.policy.steering import Order, Steering

GetInputs = Callable[[], EvictorInputs]


@dataclass(frozen=True, slots=True)
class Policy:
    """How the engine is to behave. `make_evictor` is None where vLLM's own free list stays.

    It asks for the inputs only if it needs them: a policy that knows no costs serves models without a cost model too.
    `segments` and `chunking`: whether Multi-Segment Attention and adaptive chunking come with it. `steering` is what
    the agent runtime does; None is no runtime at all.
    """

    name: str
    summary: str
    make_evictor: Callable[[GetInputs], Evictor] | None
    segments: bool = False
    chunking: bool = False
    steering: Steering | None = None


def _make_lru(_: GetInputs) -> Evictor:
    return LruEvictor()


def _make_asymcache(get_inputs: GetInputs, kind: type[AsymCacheEvictor] = AsymCacheEvictor) -> Evictor:
    inputs = get_inputs()
    return kind(
        num_blocks=inputs.num_blocks,
        **asdict(inputs.frequency),
        **asdict(inputs.compared_loss),
        controller=LambdaController(inputs.frequency, inputs.lifespan_window, inputs.lambda_bounds),
    )


def _make_asymcache_linear(get_inputs: GetInputs) -> Evictor:
    return _make_asymcache(get_inputs, AsymCacheLinearEvictor)


def _make_agentcache(get_inputs: GetInputs) -> Evictor:
    inputs = get_inputs()
    return GroupedEvictor(num_blocks=inputs.num_blocks, **asdict(inputs.compared_loss), learning=inputs.learning)


def _make_max_score(get_inputs: GetInputs) -> Evictor:
    inputs = get_inputs()
    return MaxScoreEvictor(num_blocks=inputs.num_blocks, **asdict(inputs.frequency))


def _make_pensieve(get_inputs: GetInputs) -> Evictor:
    inputs = get_inputs()
    return PensieveEvictor(num_blocks=inputs.num_blocks, **asdict(inputs.compared_loss))


_FACTORS = Steering(factors=True)
_RELEASED = Steering(ttl="released", pin_rank="deadline", wait_for_pins="always", order=Order(), victim="latest job")
_OURS = Steering(
    ttl="hazard",
    pin_rank="job arrival",
    wait_for_pins="weighed",
    protect_waiting=True,
    order=Order(seniority_s=12.0, patience_s=8.0),
    victim="cheapest",
)
_PUBLISHED = Steering(ttl="published", pin_rank="job arrival", order=Order(), victim="latest job")

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("vllm", "stock vLLM, nothing replaced", None),
        Policy("lru", "our block queue, least recently used first; equals vllm", _make_lru),
        Policy(
            "agentcache",
            "least cost over the learnt wait for reuse first, pins that weigh their price, order of jobs with ageing",
            _make_agentcache,
            segments=True,
            chunking=True,
            steering=_OURS,
        ),
        Policy(
            "asymcache",
            "least expected recomputation cost first",
            _make_asymcache,
            segments=True,
            chunking=True,
            steering=_FACTORS,
        ),
        Policy(
            "asymcache-linear",
            "the same by an O(n) scan, to compare with",
            _make_asymcache_linear,
            segments=True,
            chunking=True,
            steering=_FACTORS,
        ),
        Policy("continuum-code", "LRU, 2 s pins after fast tools, order of jobs", _make_lru, steering=_RELEASED),
        Policy("continuum-paper", "LRU, pins by the paper's model, order of jobs", _make_lru, steering=_PUBLISHED),
        Policy(
            "continuum+asymcache",
            "continuum-paper's pins and order over asymcache",
            _make_asymcache,
            segments=True,
            chunking=True,
            steering=replace(_PUBLISHED, factors=True),
        ),
        Policy("max-score", "least likely to be reused first, whatever it costs; O(n)", _make_max_score),
        Policy("pensieve", "least cost over idle time first; O(n)", _make_pensieve, segments=True),
    )
}
DEFAULT_POLICY = "agentcache"


def find_policy(name: str) -> Policy:
    """Raises InputError for a name that no policy has."""
    try:
        return POLICIES[name]
    except KeyError:
        raise InputError(f"--policy {name}: unknown; choose from {', '.join(POLICIES)}") from None
