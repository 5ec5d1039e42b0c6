"""A job that moves from engine to engine: its first turn at the new one tells why nothing of it is cached there."""

from __future__ import annotations

import pytest
from lone_scheduler import BLOCK_SIZE, LoneScheduler, make_config, make_scheduler
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.request import Request

from agentcache.engine.constants import LEFT_ARGUMENT, SCHEDULER_CLASS
from agentcache.engine.marks import read_left
from agentcache.engine.observe.misses import explain_misses
from agentcache.engine.request_state import Overlap
from agentcache.engine.rpc.core_calls import release
from agentcache.engine.rpc.job_views import count_runtime, view_session
from agentcache.engine.views import TurnView
from agentcache.front_end.placement_process import JobPlaces
from agentcache.front_end.placer import Placer
from agentcache.policy.price import RecomputeCost
from agentcache.policy.replicas.engine_load import PrefillCost

COST = PrefillCost(RecomputeCost(slope_s=0.0, base_s=1.0, floor_s=1e-9), BLOCK_SIZE)
REPLY = [7] * BLOCK_SIZE


class Engines:
    """Two real schedulers, and the placer that an API server has before them."""

    def __init__(self, model_path: str) -> None:
        configs = [make_config(model_path, SCHEDULER_CLASS, policy="agentcache") for _ in range(2)]
        self.engines = [LoneScheduler(make_scheduler(config, 64)) for config in configs]
        self.placement = JobPlaces(2, capacity_tokens=63 * BLOCK_SIZE, prefill_cost=COST)
        self.placer = Placer(self.placement, self._release, clock=lambda: 0.0)
        self.params = SamplingParams(max_tokens=len(REPLY), ignore_eos=True)

    def turn(self, name: str, prompt: list[int]) -> tuple[int, TurnView]:
        """Serve a turn of one session. Returns its engine, and what that tells of it."""
        request = EngineCoreRequest(name, prompt, None, self.params, None, 0.0, None, None, None, session_id="one")
        engine = self.placer.choose(request)
        assert engine is not None
        lone = self.engines[engine]
        lone.add_sent(request, REPLY)
        while not lone.idle:
            lone.step()
        self.placer.note(EngineCoreOutputs(outputs=[EngineCoreOutput(name, REPLY)], finished_requests={name}))
        (job,) = view_session(lone.scheduler.tracker, "one")
        return engine, job.turns[-1]

    def _release(self, engine: int, session: str, tenant: str | None) -> None:
        release(self.engines[engine].scheduler.tracker, session, [tenant])


def test_the_first_turn_after_a_move_tells_of_it(tiny_model_path: str) -> None:
    engines = Engines(tiny_model_path)
    prompt = list(range(5 * BLOCK_SIZE))
    home, first = engines.turn("1", prompt)
    assert first.misses == {"new": 5 * BLOCK_SIZE}
    # Far more waits there than a move can cost.
    engines.placement.loads[home].queue("crowd", 1e6)
    prompt += [*REPLY, *[9] * 20]
    moved, second = engines.turn("2", prompt)
    assert moved == 1 - home
    assert second.misses == {"at another engine": 6 * BLOCK_SIZE, "new": 20}
    counts = count_runtime(engines.engines[moved].scheduler.tracker)
    assert counts.missed_tokens["at another engine"] == 6 * BLOCK_SIZE
    again, third = engines.turn("3", [*prompt, *REPLY, *[8] * BLOCK_SIZE])
    assert (again, third.misses.get("at another engine")) == (moved, None)
    assert engines.params.extra_args is None, "other samples of the request have the same parameters"


@pytest.mark.parametrize("told", ["many", -5, None, 1.5])
def test_a_client_s_own_mark_of_another_kind_is_nothing(told: object) -> None:
    request = Request("1", [1], SamplingParams(extra_args={LEFT_ARGUMENT: told}), None)
    assert explain_misses([0], 16, {}, Overlap(0, None), 16, left_tokens=read_left(request)) == {"new": 16}


def test_what_both_engines_had_was_evicted_here() -> None:
    """The job was here before, so that blocks up to the third were cached at one time."""
    missed = [0, 1, 2, 3, 4]
    told = explain_misses(missed, 5 * 16 + 3, {}, Overlap(3 * 16, None), 16, left_tokens=4 * 16)
    assert told == {"evicted": 3 * 16, "at another engine": 16, "new": 16 + 3}
