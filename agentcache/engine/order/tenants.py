"""Books what tenants take: for the order of their requests, limits on their jobs, and who gives way in the cache.

Start-time fair queueing (Goyal et al., 1996): each tenant has a virtual time, the seconds of the engine that it has
taken, divided by its weight. The one with the least goes next. Who was idle begins where the others are.

A share of the cache is borrowed while its tenant has neither requests nor pins. From the next step on the pins of who
is beyond its share are the first to lose blocks, and turns of who is not wait for nothing that others keep. What runs
is not preempted for it: blocks in use come back when their turns end.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from agentcache.engine.blocks.pins import LATEST_S, Pin, Pins
from agentcache.engine.parts import Part
from agentcache.engine.request_state import RequestState
from agentcache.engine.vllm.base import cdiv
from agentcache.engine.vllm.types import Request
from agentcache.engine.waits import WaitReason
from agentcache.policy.price import RequestCost
from agentcache.tenants import Share, Tenants
from tool_runtime.learning.job_blocks import MOST_AWAY_S
from tool_runtime.learning.job_entry import JobEntry
from tool_runtime.learning.tool_key import HUMAN

# Of those without requests so many are remembered, the latest.
MAX_IDLE = 1000
# Beside replies of a tenant with few, others' prompts take so much of the time of a step with one token. Chosen
# of 0.5, 0.65 and 0.8 on seeds 0 to 3 (benchmarks/tenants.py): less is slower in all, more makes those replies wait.
_PREFILL_SHARE = 0.6
# Multiplies the worth of what a tenant beyond its share leaves. Of 0.03, 0.1 and 1 on seeds 0 to 2 with a CPU cache,
# where it matters little.
_BEYOND_FACTOR = 0.1


@dataclass(slots=True, eq=False)
class TenantState:
    """`virtual_s` is its virtual time. `requests` are those in the engine, by their ids; `jobs` have begun."""

    id: str
    name: str
    share: Share
    virtual_s: float
    requests: set[str] = field(default_factory=set)
    jobs: dict[str, JobEntry] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class TenantShares(Part):
    """`cost` prices turns; `states` are of the requests in the engine; `find_job` finds a job that is not over.

    `list_running` lists the batch, to whose end a step adds those that it admits. `beyond` are those that hold more of
    the cache than their share, by their ids: none while there is one tenant alone.
    """

    tenants: Tenants
    cost: RequestCost
    pins: Pins | None
    states: Mapping[str, RequestState]
    find_job: Callable[[str], JobEntry | None]
    list_running: Callable[[], Sequence[Request]]
    clock: Callable[[], float]
    beyond: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Begin without tenants."""
        self._busy: dict[str, TenantState] = {}
        self._idle: OrderedDict[str, TenantState] = OrderedDict()
        # By the request in the engine: a client's salt may be long, and steps ask for each request.
        self._of_requests: dict[str, TenantState] = {}
        # Where the one began that was admitted last.
        self._virtual_s = 0.0
        # So many of the batch are booked.
        self._booked = 0
        token_s = self.cost.prefill.price.at(0) / self.cost.prefill.block_size
        self._few_tokens = max(1, int(_PREFILL_SHARE * self.cost.step_s / token_s))

    def __len__(self) -> int:
        """Return the number of tenants that are remembered."""
        return len(self._busy) + len(self._idle)

    def find(self, request: Request) -> TenantState:
        """Find whose request it is."""
        if (known := self._of_requests.get(request.request_id)) is not None:
            return known
        tenant = self.tenants.find_id(request.cache_salt)
        return self._busy.get(tenant) or self._idle.get(tenant) or self._add(tenant)

    def _add(self, tenant: str) -> TenantState:
        return self._rest(TenantState(tenant, *self.tenants.find_share(tenant), self._virtual_s))

    def _rest(self, tenant: TenantState) -> TenantState:
        self._idle[tenant.id] = tenant
        if len(self._idle) > MAX_IDLE:
            self._idle.popitem(last=False)
        return tenant

    def step(self) -> None:
        """Note that a step is scheduled next. O(running requests + pins) where there are several tenants."""
        self._booked = len(self.list_running())
        if (beyond := self._find_beyond()) != self.beyond:
            self.beyond = beyond
            if self.pins is not None:
                self.pins.rank_anew()

    def arrived(self, request: Request) -> None:
        """Note a request that has come. A tenant that had none saves nothing up."""
        tenant = self.find(request)
        if not tenant.requests:
            self._busy[tenant.id] = self._idle.pop(tenant.id)
            tenant.virtual_s = max(tenant.virtual_s, self._virtual_s)
        tenant.requests.add(request.request_id)
        self._of_requests[request.request_id] = tenant

    def find_wait(self, request: Request, available: int) -> WaitReason | None:  # noqa: ARG002
        """Have the first turn of a job wait while its tenant has as many jobs under way as it may."""
        running, tenant, state = self.list_running(), self.find(request), self.states.get(request.request_id)
        # Those that this step has admitted so far.
        for new in running[self._booked :]:
            self._begin_job(self.find(new), new)
        self._booked = len(running)
        if tenant.share.limit is None or state is None or state.entry.session in tenant.jobs:
            return None
        if len(tenant.jobs) >= tenant.share.limit:
            tenant.jobs = {name: job for name, job in tenant.jobs.items() if self._is_under_way(job)}
        return "limit" if len(tenant.jobs) >= tenant.share.limit else None

    def limit_prefill(self, tokens: int, decodes: int, requests: int) -> int:  # noqa: ARG002
        """Limit the prompt tokens of a step for replies of tenants that have less of the batch than their share.

        What those tenants' own prompts lack comes on top.
        """
        if len(self._busy) < 2:
            return tokens
        running, busy = self.list_running(), self._busy.values()
        counts, whole = Counter(self.find(each).id for each in running), sum(each.share.weight for each in busy)
        light = {each.id for each in busy if 0 < counts[each.id] * whole < each.share.weight * len(running)}
        own = [each for each in running if each.is_prefill_chunk and self.find(each).id in light]
        lacking = sum(each.num_tokens - each.num_computed_tokens for each in own)
        return min(tokens, self._few_tokens + lacking) if light else tokens

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:
        """Charge what the request computes, now and again after a preemption."""
        tenant = self.find(request)
        self._virtual_s = max(self._virtual_s, tenant.virtual_s)
        computed = request.num_tokens - hit_tokens + len(filled) * self.cost.prefill.block_size
        tenant.virtual_s += self.cost.of_turn(request.num_tokens - computed, computed, 0) / tenant.share.weight
        self._begin_job(tenant, request)

    def ended(self, request: Request) -> None:
        """Charge the tokens of the reply, and note that the request is over."""
        tenant = self.find(request)
        if request.request_id not in tenant.requests:
            # It generates no text.
            return
        tenant.virtual_s += self.cost.of_turn(0, 0, request.num_output_tokens) / tenant.share.weight
        tenant.requests.remove(request.request_id)
        del self._of_requests[request.request_id]
        if not tenant.requests:
            self._rest(self._busy.pop(tenant.id))

    def passes(self, request: Request) -> bool:
        """Tell whether the request waits for nothing that others keep: they are beyond their share, and it is not."""
        return bool(self.beyond) and self.find(request).id not in self.beyond

    def lift(self, tenant: str) -> float:
        """Return what is added to the rank of a tenant's pins: more than they differ, unless it is beyond its share."""
        return 0.0 if tenant in self.beyond else 2 * LATEST_S

    def weigh(self, request: Request) -> float:
        """Return what multiplies the worth of blocks that a request leaves, in either cache."""
        return _BEYOND_FACTOR if self.find(request).id in self.beyond else 1.0

    def rank(self, rank: Callable[[Pin], float]) -> Callable[[Pin], float]:
        """Return how a pin stands among others, which is `rank` among those of its tenant."""
        return lambda pin: rank(pin) + self.lift(pin.tenant)

    def _find_beyond(self) -> frozenset[str]:
        pins = self.pins
        names = self._busy.keys() | {pin.tenant for pin in pins or ()}
        if len(names) < 2:
            return frozenset()
        weights = {name: self.tenants.find_share(name)[1].weight for name in names}
        held: Counter[str] = Counter()
        for request in self.list_running():
            held[self.find(request).id] += cdiv(request.num_computed_tokens, self.cost.prefill.block_size)
        if pins is not None:
            for pin in pins:
                held[pin.tenant] += pins.blocks_left(pin)
        part = sum(weights.values()) / self.cost.prefill.num_blocks
        return frozenset(name for name, blocks in held.items() if blocks * part > weights[name])

    def _begin_job(self, tenant: TenantState, request: Request) -> None:
        state = self.states.get(request.request_id)
        if tenant.share.limit is not None and state is not None:
            tenant.jobs[state.entry.session] = state.entry

    def _is_under_way(self, job: JobEntry) -> bool:
        """Tell whether a job runs, or waits for tools, for a time: a client that has gone is not waited for."""
        if self.find_job(job.session) is not job:
            return False
        is_away = self.clock() - job.last_active_s > MOST_AWAY_S
        return bool(job.running) or (not is_away and any(turn.key != HUMAN for turn in job.pending.values()))
