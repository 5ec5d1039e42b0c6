from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest

from agentcache.errors import InputError
from agentcache.policy.asymcache import AsymCacheEvictor
from agentcache.policy.asymcache_linear import AsymCacheLinearEvictor
from agentcache.policy.cost import LossCost
from agentcache.policy.evictor import Evictor
from agentcache.policy.frequency import Frequency
from agentcache.policy.grouped import GroupedEvictor, Learning
from agentcache.policy.inputs import EvictorInputs
from agentcache.policy.lifespan import LambdaBounds
from agentcache.policy.lru import LruEvictor
from agentcache.policy.max_score import MaxScoreEvictor
from agentcache.policy.pensieve import PensieveEvictor
from agentcache.policy.registry import DEFAULT_POLICY, POLICIES, Policy, find_policy
from agentcache.policy.steering import PinRank, PinWait, Steering, Ttl, Victim

INPUTS = EvictorInputs(
    num_blocks=8,
    loss=LossCost(slope_s=1e-9, base_s=2e-5, floor_s=1e-7),
    frequency=Frequency(alpha_s=14.0, beta_s=0.35, tau0_s=9.75),
    lifespan_window=10,
    lambda_bounds=LambdaBounds(),
    learning=Learning(),
)


def test_every_policy_is_found_by_its_name() -> None:
    assert {name: find_policy(name).name for name in POLICIES} == {name: name for name in POLICIES}
    assert {"vllm", "lru", DEFAULT_POLICY} <= set(POLICIES)


def test_only_vllm_keeps_the_stock_free_list() -> None:
    assert [name for name, policy in POLICIES.items() if policy.make_evictor is None] == ["vllm"]


@pytest.mark.parametrize("name", ["fifo", "LRU", ""])
def test_an_unknown_policy_is_answered_with_the_choices(name: str) -> None:
    with pytest.raises(InputError) as caught:
        find_policy(name)
    assert str(caught.value) == f"--policy {name}: unknown; choose from {', '.join(POLICIES)}"


def test_policies_and_config_load_without_the_engine() -> None:
    check = "import agentcache.config, sys; print({'torch', 'vllm'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_lru_needs_no_cost_model() -> None:
    def get_inputs() -> EvictorInputs:
        raise AssertionError("a model without a cost model must be served too")

    make_evictor = POLICIES["lru"].make_evictor
    assert make_evictor is not None
    assert len(make_evictor(get_inputs)) == 0


@dataclass(frozen=True)
class Composition:
    """What a policy composes, as far as users are told."""

    segments: bool = False
    chunking: bool = False
    factors: bool = False
    ttl: Ttl = "none"
    pin_rank: PinRank = "job arrival"
    wait_for_pins: PinWait = "none"
    protect_waiting: bool = False
    seniority_s: float | None = None
    patience_s: float | None = None
    victim: Victim = "last"


def compose(policy: Policy) -> Composition:
    steering = policy.steering or Steering()
    return Composition(
        segments=policy.segments,
        chunking=policy.chunking,
        factors=steering.factors,
        ttl=steering.ttl,
        pin_rank=steering.pin_rank,
        wait_for_pins=steering.wait_for_pins,
        protect_waiting=steering.protect_waiting,
        seniority_s=steering.order.seniority_s if steering.order is not None else None,
        patience_s=steering.order.patience_s if steering.order is not None else None,
        victim=steering.victim,
    )


RELEASED = Composition(
    ttl="released",
    pin_rank="deadline",
    wait_for_pins="always",
    seniority_s=math.inf,
    patience_s=math.inf,
    victim="latest job",
)
PUBLISHED = Composition(
    ttl="published", pin_rank="job arrival", seniority_s=math.inf, patience_s=math.inf, victim="latest job"
)
ASYMCACHE = Composition(segments=True, chunking=True, factors=True)
COMPOSITIONS = {
    "vllm": Composition(),
    "lru": Composition(),
    "agentcache": Composition(
        segments=True,
        chunking=True,
        ttl="hazard",
        pin_rank="job arrival",
        wait_for_pins="weighed",
        protect_waiting=True,
        seniority_s=12.0,
        patience_s=8.0,
        victim="cheapest",
    ),
    "asymcache": ASYMCACHE,
    "asymcache-linear": ASYMCACHE,
    "continuum-code": RELEASED,
    "continuum-paper": PUBLISHED,
    "continuum+asymcache": replace(PUBLISHED, segments=True, chunking=True, factors=True),
    "max-score": Composition(),
    "pensieve": Composition(segments=True),
}


def test_what_every_policy_composes() -> None:
    assert {name: compose(policy) for name, policy in POLICIES.items()} == COMPOSITIONS


@pytest.mark.parametrize(
    ("name", "evictor"),
    [
        ("lru", LruEvictor),
        ("continuum-code", LruEvictor),
        ("continuum-paper", LruEvictor),
        ("agentcache", GroupedEvictor),
        ("asymcache", AsymCacheEvictor),
        ("continuum+asymcache", AsymCacheEvictor),
        ("asymcache-linear", AsymCacheLinearEvictor),
        ("max-score", MaxScoreEvictor),
        ("pensieve", PensieveEvictor),
    ],
)
def test_which_blocks_every_policy_evicts(name: str, evictor: type[Evictor]) -> None:
    make_evictor = POLICIES[name].make_evictor
    assert make_evictor is not None
    assert type(make_evictor(lambda: INPUTS)) is evictor


def test_stock_policies_follow_no_jobs_and_those_that_follow_some_have_our_queue() -> None:
    assert {name for name, policy in POLICIES.items() if policy.steering is None} == {
        "vllm",
        "lru",
        "max-score",
        "pensieve",
    }
    assert all(policy.make_evictor is not None for policy in POLICIES.values() if policy.steering is not None)
