"""vLLM's scheduler, block pool and our policy as in production, without a worker: a model says how long steps take."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from agentcache.engine.blocks.evictor_inputs import find_cost_model
from agentcache.engine.constants import AGENT_ARGUMENT, CALLS_ARGUMENT, PARENT_ARGUMENT, REPLY_ARGUMENT
from agentcache.engine.marks import write_forced_calls
from agentcache.engine.observe.misses import MissLog
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.types import (
    BlockHash,
    EngineCoreOutput,
    KVConnectorOutput,
    ModelRunnerOutput,
    Request,
    RequestStatus,
    SamplingParams,
    SchedulerOutput,
    get_request_block_hasher,
    hash_block_tokens,
)
from agentcache.policy.step_cost import Row, StepCost
from agentcache.sim.clock import VirtualClock
from agentcache.sim.delays import make_link
from agentcache.sim.engine_shape import EngineShape, build_scheduler
from agentcache.sim.known_hashes import KnownHashes, MadeHashes, choose_hash
from agentcache.sim.quick_pool import follow, quicken
from tool_runtime.agent.job import ToolCall

# An engine whose scheduler holds every request back looks again after this time.
IDLE_STEP_S = 0.001
# What a fill request samples is thrown away.
_FILL_TOKEN = 0


@dataclass(slots=True)
class RequestTimes:
    """One request in the engine. `cached_tokens` are known with the first token."""

    request_id: str
    added_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A step's results, in the order of the batch. `preempted` are ids of requests that must begin again."""

    started_s: float
    ended_s: float
    scheduled_tokens: int = 0
    first_tokens: tuple[RequestTimes, ...] = ()
    finished: tuple[RequestTimes, ...] = ()
    preempted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Step:
    """A batch, and the ids of the requests that get a token from it."""

    output: SchedulerOutput
    sampled: frozenset[str]
    started_s: float
    ended_s: float


class SimulatedEngine:
    """Steps are begun and ended by the caller, who owns the clock; requests may come in between, as in production.

    Scheduling takes no virtual time: with async scheduling, as long as that takes no longer than the step before, it
    costs nothing. What async scheduling costs a request is here: one that comes while a step runs is in the batch after
    the next, because the next is scheduled already.

        running   | step 1          | step 2          | step 3
        scheduled 1, 2              3 (with all that came during step 1)
    """

    def __init__(
        self,
        shape: EngineShape,
        policy: str,
        gpu: StepCost,
        clock: VirtualClock,
        *,
        hashes: dict[str, MadeHashes] | None = None,
        scheduler: type[AgentScheduler] = AgentScheduler,
    ) -> None:
        """Make the engine, with a scheduler of this class. Raises InputError for what vLLM refuses.

        `hashes` are kept from simulation to simulation of the same requests.
        """
        self.scheduler = build_scheduler(shape, policy, clock, scheduler)
        config = self.scheduler.vllm_config
        # Recurrent layers make it longer.
        self.block_size = config.cache_config.block_size
        self.cache_tokens = shape.round_cache(self.block_size)
        self._block_keys = quicken(self.scheduler)
        _leave_out_counts(self.scheduler)
        self._link = make_link(self.scheduler) if shape.host_tokens else None
        self.clock = clock
        self.host_tokens = shape.host_tokens
        # Prompt tokens by the cache that had them.
        self.hit_tokens: Counter[str] = Counter()
        self.preemptions = 0
        self.prefill_s = 0.0
        self.busy_s = 0.0
        self.recompute_cost = find_cost_model(config, self.scheduler.config).recompute_cost(shape.block_size)
        self._gpu = gpu
        self._hash_function = choose_hash(config)
        hash_blocks = get_request_block_hasher(self.scheduler.hash_block_size, self._hash_function)
        self._known_hashes = KnownHashes(hash_blocks, self.scheduler.hash_block_size, hashes)
        self._replies: dict[str, Sequence[int]] = {}
        self._times: dict[str, RequestTimes] = {}
        # In the order of their ends.
        self._steps: deque[_Step] = deque()
        self._most_steps = 2 if shape.async_scheduling else 1

    @property
    def has_host_cache(self) -> bool:
        """Tell whether there is a CPU cache."""
        return self._link is not None

    @property
    def idle(self) -> bool:
        """Tell whether no request waits or runs."""
        return not self._times

    @property
    def evictions(self) -> dict[str, int] | None:
        """Blocks that lost reusable KV, by cause; None where vLLM's own free list is in place."""
        queue = self.scheduler.block_queue
        return None if queue is None else {cause: lost.blocks for cause, lost in queue.evictions.items()}

    @property
    def waits_s(self) -> dict[str, float] | None:
        """Seconds that requests have waited before they ran, by reason; None where no jobs are followed."""
        tracker = self.scheduler.tracker
        return None if tracker is None else {reason: each.total for reason, each in tracker.stats.counts.waits.items()}

    @property
    def can_begin(self) -> bool:
        """Tell whether there are requests, and room for a step beside those that have begun and not ended."""
        return not self.idle and len(self._steps) < self._most_steps

    def add(
        self,
        request_id: str,
        prompt: list[int],
        reply: Sequence[int],
        session_id: str | None = None,
        calls: Sequence[ToolCall] = (),
        *,
        agent: str | None = None,
        parent: str | None = None,
        tenant: str | None = None,
    ) -> None:
        """Add a request for `prompt` to be answered with `reply`, both token ids, which stands for these calls.

        `agent` is the one of the session that asks, and `parent` the one that has begun it, None for the main one;
        `tenant` has the session, if any has.
        """
        now_s = self.clock.now()
        dictated = {REPLY_ARGUMENT: reply, CALLS_ARGUMENT: write_forced_calls(calls)}
        if agent is not None:
            dictated[AGENT_ARGUMENT] = agent
        if parent is not None:
            dictated[PARENT_ARGUMENT] = parent
        params = SamplingParams(max_tokens=len(reply), ignore_eos=True, extra_args=dictated)
        hash_blocks = self._known_hashes.hash_blocks
        request = Request(
            request_id,
            prompt,
            params,
            None,
            arrival_time=now_s,
            cache_salt=tenant,
            block_hasher=hash_blocks,
            session_id=session_id,
        )
        earlier = self._known_hashes.remember(request)
        if earlier is not None and self._block_keys is not None:
            follow(self._block_keys, request, earlier)
        self._replies[request_id] = reply
        self._times[request_id] = RequestTimes(request_id, now_s)
        self.scheduler.add_request(request)

    def hash_block(self, before: bytes | None, tokens: Sequence[int]) -> bytes:
        """Hash a full block as the engine does: its tokens, and the block `before` it in its request."""
        parent = None if before is None else BlockHash(before)
        return hash_block_tokens(self._hash_function, parent, tokens)

    def abort(self, request_id: str) -> None:
        """Abort a request as if its client had gone."""
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        del self._replies[request_id], self._times[request_id]
        self._known_hashes.ended(request_id)

    def end_session(self, session_id: str) -> None:
        """Forget what was kept for a session's next request."""
        self._known_hashes.forget(session_id)

    def close(self) -> None:
        """Write what is still to be recorded, if anything is."""
        for close in self.scheduler.observers.find_own("close"):
            close()

    def begin_step(self) -> float:
        """Schedule a batch and return when it will be done. There must be room for a step."""
        assert len(self._steps) < self._most_steps
        now_s = self.clock.now()
        output = self.scheduler.schedule()
        for request_id in output.num_scheduled_tokens:
            # The scheduler's fill requests are none of ours.
            times = self._times.get(request_id)
            if times is not None and times.scheduled_s is None:
                times.scheduled_s = now_s
        requests = self.scheduler.requests
        # Until then the next batch may have the rest of a prompt.
        sampled = frozenset(name for name in output.num_scheduled_tokens if not requests[name].is_prefill_chunk)
        started_s = max(now_s, self._steps[-1].ended_s) if self._steps else now_s
        step = _Step(output, sampled, started_s, started_s + self._predict_step(output))
        if self._link is not None:
            self._link.begin(output.kv_connector_metadata, step.started_s, step.ended_s)
        self._steps.append(step)
        return step.ended_s

    def _predict_step(self, output: SchedulerOutput) -> float:
        """Return the step's seconds, and count those of prefill."""
        if not output.num_scheduled_tokens:
            # Behind another step the scheduler looks again when that is done.
            return 0.0 if self._steps else IDLE_STEP_S
        prefills, decodes = self._split_batch(output)
        step_s = self._gpu.step_s([*prefills, *decodes])
        self.busy_s += step_s
        if prefills:
            # By how much they made the step longer than the decodes alone would have been.
            self.prefill_s += step_s - self._gpu.step_s(decodes)
        return step_s

    def end_step(self) -> StepOutcome:
        """Give every request of the oldest batch its next token, at the time that `begin_step` has told."""
        step = self._steps.popleft()
        assert self.clock.now() == step.ended_s
        preempted = tuple(sorted(self._times.keys() & (step.output.preempted_req_ids or ())))
        self.preemptions += len(preempted)
        by_client = {}
        # A worker looks when it begins a step.
        copied = self._link.end(step.started_s) if self._link is not None else None
        if step.output.num_scheduled_tokens or copied is not None:
            by_client = self.scheduler.update_from_output(step.output, self._sample(step, copied))
        replies = [reply for outputs in by_client.values() for reply in outputs.outputs]
        first, finished = self._note_tokens(replies, step.ended_s)
        tokens = step.output.total_num_scheduled_tokens
        return StepOutcome(step.started_s, step.ended_s, tokens, first, finished, preempted)

    def _split_batch(self, output: SchedulerOutput) -> tuple[list[Row], list[Row]]:
        """Split into rows of prefill and rows of decode. What a preempted request computes again is prefill."""
        prefills: list[Row] = []
        decodes: list[Row] = []
        for request_id, new_tokens in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[request_id]
            # vLLM has counted the scheduled tokens as computed already.
            context_tokens = request.num_computed_tokens - new_tokens
            is_prefill = new_tokens > 1 or context_tokens < request.num_prompt_tokens
            (prefills if is_prefill else decodes).append(Row(new_tokens, context_tokens))
        return prefills, decodes

    def _sample(self, step: _Step, copied: KVConnectorOutput | None) -> ModelRunnerOutput:
        # A request may have been aborted while the step was under way.
        ids = [name for name in step.output.num_scheduled_tokens if name in self.scheduler.requests]
        sampled = [self._next_token(name) if name in step.sampled else [] for name in ids]
        rows = {name: row for row, name in enumerate(ids)}
        return ModelRunnerOutput(ids, rows, sampled, kv_connector_output=copied)

    def _next_token(self, request_id: str) -> list[int]:
        reply = self._replies.get(request_id)
        return [_FILL_TOKEN if reply is None else reply[self.scheduler.requests[request_id].num_output_tokens]]

    def _note_tokens(
        self, replies: Sequence[EngineCoreOutput], now_s: float
    ) -> tuple[tuple[RequestTimes, ...], tuple[RequestTimes, ...]]:
        """Return the requests with a first token, and the finished ones, which are forgotten."""
        first, finished = [], []
        for reply in replies:
            times = self._times[reply.request_id]
            if times.first_token_s is None:
                times.first_token_s = now_s
                first.append(times)
            if reply.prefill_stats is not None:
                times.cached_tokens = reply.prefill_stats.num_cached_tokens
                self.hit_tokens["gpu"] += reply.prefill_stats.num_local_cached_tokens
                self.hit_tokens["host"] += reply.prefill_stats.num_external_cached_tokens
            if reply.finished:
                times.finished_s = now_s
                finished.append(times)
                del self._replies[reply.request_id], self._times[reply.request_id]
                self._known_hashes.ended(reply.request_id)
        return tuple(first), tuple(finished)


def _leave_out_counts(scheduler: AgentScheduler) -> None:
    """Leave out what only counts and explains, in ways that a simulation has no use for: it takes long."""
    if (comparison := scheduler.comparison) is not None:
        scheduler.observers.drop(comparison)
    if scheduler.tier is None and (misses := scheduler.observers.find(MissLog)) is not None:
        # The CPU cache learns from what was evicted and is missed; nothing else does.
        scheduler.observers.drop(misses)
