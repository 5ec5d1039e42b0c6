"""A job tracker whose requests are made, admitted and finished by hand, under a clock that is set by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hand_clock import Clock
from kept_objects import list_kept
from python_lru import PythonLru
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher, init_none_hash
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from agentcache._evictor import FreeContext, ReturnWaits
from agentcache.engine.constants import CALLS_ARGUMENT, REPLY_ARGUMENT
from agentcache.engine.jobs.finish_classes import FinishClasses, ReuseFactors
from agentcache.engine.jobs.tracker import JobTracker
from agentcache.engine.marks import write_forced_calls
from agentcache.engine.observe.misses import Ledger, MissLog
from agentcache.engine.order.admission import AdmissionControl
from agentcache.engine.order.load_control import LoadControl
from agentcache.engine.parts import Observers
from agentcache.engine.rpc.job_views import view_session
from agentcache.policy.lifespan import LifespanEstimator
from agentcache.policy.price import RecomputeCost, RequestCost, Room, TurnCost
from agentcache.policy.runtime_policy import LONGEST_S, RuntimePolicy
from tool_runtime.agent.job import ToolCall
from tool_runtime.learning.duration_store import DurationStore
from tool_runtime.learning.job_blocks import ChainOwners
from tool_runtime.learning.runtime import AgentRuntime
from tool_runtime.learning.tool_key import ToolKey
from tool_runtime.learning.ttl import TtlEstimator

BLOCK = 4
LOSS_S = 0.5
STEP_S = 0.01
# What load control has of the engine's time.
SHARE = 0.5
COST = RecomputeCost(slope_s=0.0, base_s=LOSS_S, floor_s=1e-6)
SYSTEM = [1] * 2 * BLOCK
ASKED = [*SYSTEM, *[2] * 2 * BLOCK]
TASK, BASH = ToolCall("task", "{}"), ToolCall("bash", "{}")

init_none_hash(sha256)


class ListeningEvictor(PythonLru):
    def __init__(self) -> None:
        super().__init__()
        self.gaps_s: list[float] = []
        self.lifespan = LifespanEstimator(window=10)
        self.waits = ReturnWaits(least_wait_s=1.0)

    def observe_reuse(self, idle_s: float) -> None:
        self.gaps_s.append(idle_s)
        self.lifespan.observe(idle_s)


def count_chains(tracker: JobTracker) -> int:
    """How many prompts and replies it would still know again."""
    (chains,) = list_kept(tracker.finder, ChainOwners)
    return len(chains)


def make_demand(
    is_short: Callable[[], bool],
    find_room: Callable[[], Room] = lambda: Room(math.inf, 0.0),
    find_refills: Callable[[Callable[[int, int], float]], float] = lambda _: 0.0,
) -> Any:
    return SimpleNamespace(
        exceeds_room=is_short, find_room=find_room, find_refills=find_refills, note_jobs=lambda: None
    )


@dataclass
class Tracked:
    """`pins` and `estimator` are for policies with pins; `hits` is what every request will hit."""

    runtime_policy: RuntimePolicy = RuntimePolicy()  # noqa: RUF009 (it is frozen)
    pins: Any = None
    estimator: TtlEstimator | None = None
    max_jobs: int = 100
    clock: Clock = field(default_factory=Clock)
    evictor: ListeningEvictor = field(default_factory=ListeningEvictor)
    hits: list[KVCacheBlock] = field(default_factory=list)
    # Blocks of each request that the CPU cache alone has.
    elsewhere: int = 0
    waiting: int = 0
    # So many that requests wait for pins until their patience is over.
    running: int = 1_000_000
    # Whether jobs want more than the caches hold.
    short: bool = False
    # For so many jobs there is room, of so many tokens each.
    places: int = 100
    job_tokens: float = math.inf
    # How often all that the caches hold can be computed in a round.
    refills: float = 0.0
    store: DurationStore | None = None
    shows_text: bool = False
    hash_block: int = BLOCK
    # The size of the GPU's cache.
    num_blocks: int = 100
    # The requests whose hits were looked for.
    looks: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runtime = AgentRuntime(
            clock=self.clock, estimator=self.estimator, max_jobs=self.max_jobs, max_idle_s=3600.0
        )
        demand = make_demand(lambda: self.short, self._find_room, lambda _: self.refills)
        turn_cost = TurnCost(COST, BLOCK, self.num_blocks)
        factors = ReuseFactors(self.evictor, self.runtime, self.evictor.lifespan, reuse_probability=0.5)
        self.tracker = JobTracker(
            runtime_policy=self.runtime_policy,
            runtime=self.runtime,
            pins=self.pins,
            waiting=AdmissionControl(
                self.runtime_policy,
                self.pins,
                num_blocks=self.num_blocks,
                block_size=BLOCK,
                price_taken=COST.at,
                find_work=RequestCost(turn_cost, STEP_S).find,
                count_running=lambda: self.running,
                find_turns=self.runtime.jobs.turn_counts.quantile,
                find_growth=lambda: self.runtime.context_growth.ratio,
                load_control=LoadControl(
                    SHARE,
                    LONGEST_S,
                    demand=demand,
                    find_hits=self._find_hits,
                    count_elsewhere=lambda _: self.elsewhere,
                    find_seconds=lambda prompt, kept: 1.0 * (prompt - kept),
                    block_size=BLOCK,
                    loses_whole=False,
                ),
            ),
            factors=factors if self.runtime_policy.factors else None,
            finish_classes=FinishClasses(self.evictor.waits, self.runtime.durations),
            turn_cost=turn_cost,
            hash_block_size=self.hash_block,
            tool_reader=None,
            count_waiting=lambda: self.waiting,
            store=self.store,
            shows_text=self.shows_text,
            connector=None,
            observers=Observers(),
            clock=self.clock,
        )
        ledger = Ledger(turn_cost.num_blocks, self.clock)
        self.misses = MissLog(self.hash_block, ledger, self.clock, self.tracker.states)
        self._hasher = get_request_block_hasher(self.hash_block, sha256)

    def _find_hits(self, request: Request) -> list[KVCacheBlock]:
        self.looks.append(request)
        return self.hits

    def _find_room(self) -> Room:
        return Room(self.runtime.jobs.turn_counts.find_latest(self.places), self.job_tokens)

    def ask(
        self,
        name: str,
        prompt: Sequence[int],
        session: str | None = None,
        salt: str | None = None,
        calls: Sequence[ToolCall] | None = (),
        *,
        marks: Mapping[str, Any] | None = None,
        end_of_turn: int | None = None,
        ignores_end: bool = False,
        adapter: str | None = None,
        prompt_logprobs: int | None = None,
        max_tokens: int = 99,
    ) -> Request:
        """A request comes. Its reply will have these calls; None is a reply that is not dictated.

        `marks` are what the API server tells of the prompt.
        """
        arguments = {REPLY_ARGUMENT: [], CALLS_ARGUMENT: write_forced_calls(calls)} if calls is not None else {}
        extra_args = {**arguments, **(marks or {})} or None
        params = SamplingParams(
            max_tokens=max_tokens, extra_args=extra_args, ignore_eos=ignores_end, prompt_logprobs=prompt_logprobs
        )
        params.update_from_generation_config({}, end_of_turn)
        request = Request(
            name,
            list(prompt),
            params,
            None,
            block_hasher=self._hasher,
            session_id=session,
            cache_salt=salt,
            arrival_time=0.0,
            lora_request=None if adapter is None else LoRARequest(adapter, 1, "folder"),
        )
        self.tracker.arrived(request)
        return request

    def admit(self, request: Request, cached_tokens: int = 0, filled: Collection[int] = ()) -> None:
        assert request.prefill_stats is not None
        request.prefill_stats.set(request.num_prompt_tokens, cached_tokens, 0)
        request.status = RequestStatus.RUNNING
        self.misses.admitted(request, cached_tokens, filled)
        self.tracker.admitted(request, cached_tokens, filled)

    def give_tokens(self, *names: str) -> None:
        """A step gives each of these requests a token."""
        self.tracker.stepped({0: EngineCoreOutputs(outputs=[EngineCoreOutput(name, [1]) for name in names])})

    def is_marked_answer(self, name: str) -> bool:
        """Whether clients are told that the request, which has ended in this step, was a final answer."""
        outputs = EngineCoreOutputs(finished_requests={name})
        self.tracker.stepped({0: outputs})
        return outputs.finished_requests != {name}

    def reply(
        self, request: Request, tokens: int = 4, status: RequestStatus = RequestStatus.FINISHED_STOPPED
    ) -> tuple[FreeContext, list[int]]:
        """The request is over. What becomes of its blocks, and the tokens of prompt and reply."""
        request.append_output_token_ids([sum(map(ord, request.request_id)) % 1000 + 7] * tokens)
        request.status = status
        return self.tracker.on_free(request), list(request.all_token_ids)

    def turn(self, name: str, prompt: Sequence[int], **options: Any) -> list[int]:
        """A whole turn that takes 1 s: the tokens of prompt and reply."""
        request = self.ask(name, prompt, **options)
        self.admit(request)
        self.clock.now_s += 1
        return self.reply(request)[1]

    def learned(self, tool: str = "bash") -> tuple[int, float | None]:
        """How many returns from a tool (or from a human, for no name) were learned from, and their mean."""
        history = self.runtime.durations.history(ToolKey(tool))
        return history.tool_count, history.tool_mean_s

    def turns_of(self, session: str) -> list[list[int]]:
        """The numbers of the session's turns, job by job."""
        return [[turn.turn for turn in view.turns] for view in view_session(self.tracker, session)]
