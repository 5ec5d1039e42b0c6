"""What a tenant with less of the batch than its share has of steps, and what the blocks of one beyond it are worth."""

from __future__ import annotations

from hand_clock import Clock
from vllm import SamplingParams

from agentcache.engine.order.tenants import TenantShares
from agentcache.engine.vllm.types import Request
from agentcache.policy.price import RecomputeCost, RequestCost, TurnCost
from agentcache.tenants import Tenants

SMALL, LARGE = "small", "large"
# A token of a prompt costs a second; a step has the time of ten.
COST = RequestCost(TurnCost(RecomputeCost(0.0, 1.0, 1.0), 1, num_blocks=100), step_s=10.0)
STEP_TOKENS = 1000


class Batch:
    """Requests that run, by tenant."""

    def __init__(self) -> None:
        self.running: list[Request] = []
        self.shares = TenantShares(
            tenants=Tenants(known={SMALL: {}, LARGE: {}}),
            cost=COST,
            pins=None,
            states={},
            find_job=lambda _: None,
            list_running=lambda: self.running,
            clock=Clock(),
        )

    def run(self, tenant: str, prompt: int, computed: int) -> Request:
        """A request that decodes if all of its prompt is computed."""
        name = f"{tenant} {len(self.running)}"
        request = Request(name, [1] * prompt, SamplingParams(max_tokens=9), None, cache_salt=tenant)
        request.num_computed_tokens, request.is_prefill_chunk = computed, computed < prompt
        self.shares.arrived(request)
        self.running.append(request)
        return request

    def limit(self) -> int:
        return self.shares.limit_prefill(STEP_TOKENS, 0, len(self.running))


def test_others_prompts_are_few_beside_a_small_ones_reply() -> None:
    batch = Batch()
    for _ in range(3):
        batch.run(LARGE, prompt=20, computed=20)
    assert batch.limit() == STEP_TOKENS
    batch.run(SMALL, prompt=5, computed=5)
    batch.run(LARGE, prompt=500, computed=100)
    assert batch.limit() == 6


def test_a_small_ones_own_prompt_comes_on_top() -> None:
    batch = Batch()
    for _ in range(3):
        batch.run(LARGE, prompt=20, computed=20)
    batch.run(SMALL, prompt=5, computed=5)
    batch.run(SMALL, prompt=300, computed=100)
    assert batch.limit() == 6 + 200
    # Half of the batch is its share.
    batch.run(SMALL, prompt=1, computed=1)
    assert batch.limit() == STEP_TOKENS


def test_what_is_left_beyond_a_share_is_worth_a_tenth() -> None:
    batch = Batch()
    large = batch.run(LARGE, prompt=60, computed=60)
    batch.shares.step()
    assert batch.shares.weigh(large) == 1.0
    small = batch.run(SMALL, prompt=10, computed=10)
    batch.shares.step()
    assert (batch.shares.weigh(large), batch.shares.weigh(small)) == (0.1, 1.0)
