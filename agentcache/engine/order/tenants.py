"""Books what tenants take of the engine, for the order of their requests, and limits their jobs under way.

Start-time fair queueing (Goyal et al., 1996): each tenant has a virtual time, the seconds of the engine that it has
taken, divided by its weight. The one with the least goes next. Who was idle begins where the others are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from agentcache.engine.parts import Part
from agentcache.engine.request_state import RequestState
from agentcache.engine.vllm.types import Request
from agentcache.engine.waits import WaitReason
from agentcache.policy.price import RequestCost
from agentcache.tenants import Share, Tenants, show_id
from tool_runtime.learning.job_blocks import MOST_AWAY_S
from tool_runtime.learning.job_entry import JobEntry
from tool_runtime.learning.tool_key import HUMAN

# Of those without requests so many are remembered, the latest.
MAX_IDLE = 1000
# Fewer prompt tokens in a step would hardly use a GPU. Assumed.
_LEAST_PREFILL = 128


@dataclass(slots=True, eq=False)
class TenantState:
    """`virtual_s` is its virtual time. `requests` are those in the engine, by their ids; `jobs` have begun."""

    id: str
    name: str
    share: Share
    virtual_s: float
    requests: set[str] = field(default_factory=set)
    jobs: dict[str, JobEntry] = field(default_factory=dict)


class TenantShares(Part):
    """Books what each tenant takes. Remembers those with requests, and the latest 1,000 of the others."""

    def __init__(
        self,
        tenants: Tenants,
        cost: RequestCost,
        *,
        states: Mapping[str, RequestState],
        find_job: Callable[[str], JobEntry | None],
        list_running: Callable[[], Sequence[Request]],
        clock: Callable[[], float],
    ) -> None:
        """`cost` prices turns; `states` are of the requests in the engine; `find_job` finds a job that is not over.

        `list_running` lists the batch, to whose end a step adds those that it admits.
        """
        self._tenants = tenants
        self._known = tenants.list_shares()
        self._cost = cost
        self._states = states
        self._find_job = find_job
        self._list_running = list_running
        # So many of the batch are booked.
        self._booked = 0
        self._clock = clock
        # Where the one began that was admitted last.
        self._virtual_s = 0.0
        self._busy: dict[str, TenantState] = {}
        self._idle: OrderedDict[str, TenantState] = OrderedDict()

    def find_weight(self, digest: str) -> float:
        """Find the weight of the tenant that the digest stands for."""
        return (self._known[digest][1] if digest in self._known else self._tenants.others).weight

    @property
    def busy(self) -> Collection[TenantState]:
        """Those with requests in the engine."""
        return self._busy.values()

    def __len__(self) -> int:
        """Return the number of tenants that are remembered."""
        return len(self._busy) + len(self._idle)

    def find(self, request: Request) -> TenantState:
        """Find whose request it is."""
        digest = self._tenants.find_id(request.cache_salt)
        return self._busy.get(digest) or self._idle.get(digest) or self._add(digest)

    def _add(self, digest: str) -> TenantState:
        name, share = self._known.get(digest) or (show_id(digest), self._tenants.others)
        tenant = self._idle[digest] = TenantState(digest, name, share, self._virtual_s)
        if len(self._idle) > MAX_IDLE:
            self._idle.popitem(last=False)
        return tenant

    def arrived(self, request: Request) -> None:
        """Note a request that has come. A tenant that had none saves nothing up."""
        tenant = self.find(request)
        if not tenant.requests:
            del self._idle[tenant.id]
            self._busy[tenant.id] = tenant
            tenant.virtual_s = max(tenant.virtual_s, self._virtual_s)
        tenant.requests.add(request.request_id)

    def step(self) -> None:
        """Note that a step is scheduled next."""
        self._booked = len(self._list_running())

    def find_wait(self, request: Request, available: int) -> WaitReason | None:  # noqa: ARG002
        """Have the first turn of a job wait while its tenant has as many jobs under way as it may."""
        tenant = self.find(request)
        # Those that this step has admitted so far.
        for new in self._list_running()[self._booked :]:
            self._begin_job(self.find(new), new)
            self._booked += 1
        if tenant.share.limit is None or (job := self._find_job_of(request)) is None:
            return None
        if job.session in tenant.jobs or len(tenant.jobs) < tenant.share.limit:
            return None
        over = [name for name, entry in tenant.jobs.items() if not self._is_under_way(entry)]
        for name in over:
            del tenant.jobs[name]
        return "limit" if len(tenant.jobs) >= tenant.share.limit else None

    def limit_prefill(self, tokens: int, decodes: int, requests: int) -> int:  # noqa: ARG002
        """Limit the prompt tokens of a step for tenants that have fewer of the batch than their share.

        Their replies then take no longer than on a machine of their share: beside a step with one token others' prompts
        have `1 / share - 1` times as long.
        """
        if len(self._busy) < 2:
            return tokens
        running = self._list_running()
        counts = Counter(self.find(request).id for request in running)
        whole = sum(tenant.share.weight for tenant in self.busy)
        shares = [
            tenant.share.weight / whole
            for tenant in self.busy
            if 0 < counts[tenant.id] * whole < tenant.share.weight * len(running)
        ]
        if not shares:
            return tokens
        token_s = self._cost.prefill.price.at(0) / self._cost.prefill.block_size
        return min(tokens, max(_LEAST_PREFILL, int(self._cost.step_s * (1 / min(shares) - 1) / token_s)))

    def admitted(self, request: Request, hit_tokens: int, filled: Collection[int]) -> None:
        """Charge what the request computes, now and again after a preemption."""
        tenant = self.find(request)
        self._virtual_s = max(self._virtual_s, tenant.virtual_s)
        computed = request.num_tokens - hit_tokens + len(filled) * self._cost.prefill.block_size
        self.charge(tenant, self._cost.of_turn(request.num_tokens - computed, computed, 0))
        self._begin_job(tenant, request)

    def ended(self, request: Request) -> None:
        """Charge the tokens of the reply, and note that the request is over."""
        tenant = self._busy.get(self._tenants.find_id(request.cache_salt))
        if tenant is None or request.request_id not in tenant.requests:
            # It generates no text.
            return
        self.charge(tenant, self._cost.of_turn(0, 0, request.num_output_tokens))
        tenant.requests.remove(request.request_id)
        if not tenant.requests:
            self._idle[tenant.id] = self._busy.pop(tenant.id)
            if len(self._idle) > MAX_IDLE:
                self._idle.popitem(last=False)

    def _begin_job(self, tenant: TenantState, request: Request) -> None:
        if tenant.share.limit is not None and (job := self._find_job_of(request)) is not None:
            tenant.jobs[job.session] = job

    def charge(self, tenant: TenantState, seconds: float) -> None:
        """Let a tenant's virtual time go on by what it took."""
        tenant.virtual_s += seconds / tenant.share.weight

    def _find_job_of(self, request: Request) -> JobEntry | None:
        state = self._states.get(request.request_id)
        return None if state is None else state.entry

    def _is_under_way(self, entry: JobEntry) -> bool:
        """Tell whether a job runs, or waits for tools, for a time: a client that has gone is not waited for."""
        if self._find_job(entry.session) is not entry:
            return False
        is_away = self._clock() - entry.last_active_s > MOST_AWAY_S
        waits = not is_away and any(turn.key != HUMAN for turn in entry.pending.values())
        return bool(entry.running) or waits
