from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from made_inputs import make_inputs

from agentcache._evictor import (
    AsymCacheEvictor,
    Evictor,
    LruEvictor,
    MaxScoreEvictor,
    PensieveEvictor,
    ReturnTimeEvictor,
)
from agentcache.errors import InputError
from agentcache.policy.registry import (
    DEFAULT_POLICY,
    POLICIES,
    EvictorInputs,
    Policy,
    find_policy,
    with_evictor,
)
from agentcache.policy.runtime_policy import LONGEST_S, PinRank, PinWait, RuntimePolicy, Ttl, Victim

INPUTS = make_inputs(num_blocks=8)


def test_every_policy_is_found_by_its_name() -> None:
    assert {name: find_policy(name).name for name in POLICIES} == {name: name for name in POLICIES}
    assert {"vllm", "lru", DEFAULT_POLICY} <= set(POLICIES)


def test_only_vllm_keeps_the_stock_free_list() -> None:
    assert [name for name, policy in POLICIES.items() if policy.make_evictor is None] == ["vllm"]


@pytest.mark.parametrize("name", ["fifo", "LRU", ""])
def test_an_unknown_policy_is_answered_with_the_choices(name: str) -> None:
    with pytest.raises(InputError) as caught:
        find_policy(name)
    assert str(caught.value).startswith(f"--policy {name}: unknown; choose from {', '.join(POLICIES)}")


def test_policies_and_config_load_without_the_engine() -> None:
    unwanted = {"torch", "vllm"}
    check = f"import agentcache.config, agentcache.policy.registry, sys; print({unwanted} & set(sys.modules))"
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
    reserve: float = 0.0
    running: float = 0.0
    juniors: float = 0.0
    least_wait_s: float = 0.0
    recompute_share: float = 0.0
    longest_wait_s: float = LONGEST_S
    victim: Victim = "last"


def compose(policy: Policy) -> Composition:
    runtime_policy = policy.runtime or RuntimePolicy()
    return Composition(
        segments=policy.segments,
        chunking=policy.chunking,
        factors=runtime_policy.factors,
        ttl=runtime_policy.ttl,
        pin_rank=runtime_policy.pin_rank,
        wait_for_pins=runtime_policy.wait_for_pins,
        protect_waiting=runtime_policy.protect_waiting,
        seniority_s=runtime_policy.order.seniority_s if runtime_policy.order is not None else None,
        patience_s=runtime_policy.order.patience_s if runtime_policy.order is not None else None,
        reserve=runtime_policy.order.reserve if runtime_policy.order is not None else 0.0,
        running=runtime_policy.order.running if runtime_policy.order is not None else 0.0,
        juniors=runtime_policy.order.juniors if runtime_policy.order is not None else 0.0,
        least_wait_s=runtime_policy.order.least_wait_s if runtime_policy.order is not None else 0.0,
        recompute_share=runtime_policy.order.recompute_share if runtime_policy.order is not None else 0.0,
        longest_wait_s=runtime_policy.order.longest_wait_s if runtime_policy.order is not None else LONGEST_S,
        victim=runtime_policy.victim,
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
AGENTCACHE = Composition(
    segments=True,
    chunking=True,
    ttl="hazard",
    pin_rank="job arrival",
    wait_for_pins="weighed",
    protect_waiting=True,
    seniority_s=12.0,
    patience_s=15.0,
    reserve=0.25,
    juniors=0.8,
    least_wait_s=1.0,
    recompute_share=0.25,
    victim="cheapest",
)
COMPOSITIONS = {
    "vllm": Composition(),
    "lru": Composition(),
    "observe": Composition(),
    "agentcache": AGENTCACHE,
    "agentcache-interactive": replace(AGENTCACHE, patience_s=8.0, recompute_share=0.0),
    "agentcache-throughput": replace(AGENTCACHE, recompute_share=0.15, longest_wait_s=math.inf),
    "asymcache": ASYMCACHE,
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
        ("observe", LruEvictor),
        ("continuum-code", LruEvictor),
        ("continuum-paper", LruEvictor),
        ("agentcache", ReturnTimeEvictor),
        ("agentcache-interactive", ReturnTimeEvictor),
        ("agentcache-throughput", ReturnTimeEvictor),
        ("asymcache", AsymCacheEvictor),
        ("continuum+asymcache", AsymCacheEvictor),
        ("max-score", MaxScoreEvictor),
        ("pensieve", PensieveEvictor),
    ],
)
def test_which_blocks_every_policy_evicts(name: str, evictor: type[Evictor]) -> None:
    make_evictor = POLICIES[name].make_evictor
    assert make_evictor is not None
    assert type(make_evictor(lambda: INPUTS)) is evictor


def test_stock_policies_follow_no_jobs_others_have_our_queue() -> None:
    assert {name for name, policy in POLICIES.items() if policy.runtime is None} == {
        "vllm",
        "lru",
        "max-score",
        "pensieve",
    }
    assert all(policy.make_evictor is not None for policy in POLICIES.values() if policy.runtime is not None)


@pytest.mark.parametrize(("name", "meant"), [("agentcahe", "agentcache"), ("continum-code", "continuum-code")])
def test_a_mistyped_policy_is_guessed(name: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"; did you mean {meant}\\?$"):
        find_policy(name)


def test_a_policy_takes_the_evictor_of_another() -> None:
    ours = find_policy("agentcache")
    mixed = with_evictor(ours, "lru")
    assert (mixed.make_evictor, mixed.runtime) == (find_policy("lru").make_evictor, ours.runtime)
    assert with_evictor(ours, None) is ours
    with pytest.raises(InputError, match="evictor=lru: policy vllm leaves vLLM's free list as it is"):
        with_evictor(find_policy("vllm"), "lru")
