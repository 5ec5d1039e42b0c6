"""Finds the job that a request belongs to, and tells requests that are turns from steps of a search."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from typing import NamedTuple

from agentcache.engine.jobs.names import ReplyIds, job_name, shorten
from agentcache.engine.jobs.prefix_matcher import PrefixMatcher
from agentcache.engine.jobs.told_prompt import has_history, read_predecessor
from agentcache.engine.observe.views import FoundBy
from agentcache.engine.vllm.base import init_logger
from agentcache.engine.vllm.types import Request
from agentcache.policy.replicas.chain_owners import ChainOwner
from tool_runtime.learning.job_entry import JobEntry
from tool_runtime.learning.job_table import JobTable, Parent

_MAX_STEPS = 10_000


def generates_text(request: Request) -> bool:
    """Tell whether it generates text in one go, as embeddings and live streams of input do not."""
    return request.pooling_params is None and not request.resumable


def is_search_step(request: Request) -> bool:
    """Tell whether the request is one step of a search that picks each next token itself, and so ends no turn.

    vLLM makes its beams so, online and offline, and the labels that it chooses among. A request that a connector has
    other plans with is a whole one, of which another engine decodes the rest.
    """
    params = request.sampling_params
    if params is None or params.max_tokens != 1 or request.kv_transfer_params:
        return False
    return params.logprobs is not None or params.logprob_token_ids is not None


class SearchSteps:
    """The latest steps, to tell where a search begins. Costs O(prompt) a step; knows steps by 64 bits each."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, None] = OrderedDict()

    def begins_search(self, request: Request) -> bool:
        """Note a step; tell whether it goes on from none before, by one token more than that one's prompt."""
        prompt = memoryview(array("Q", request.prompt_token_ids or ()))
        step, before = (
            hash((request.session_id, request.cache_salt, part.tobytes())) for part in (prompt, prompt[:-1])
        )
        begins = not prompt or before not in self._steps
        self._steps[step] = None
        self._steps.move_to_end(step)
        if len(self._steps) > _MAX_STEPS:
            self._steps.popitem(last=False)
        return begins


logger = init_logger("vllm.agentcache")

# Of requests that go on from an earlier reply, the latest so many are looked at.
_WINDOW = 100


class Family(NamedTuple):
    """The job's name in the table, the session as its client knows it, and the turn that a request goes on from.

    `by` tells how the job was found.
    """

    job: str
    session: str
    parent: str | Parent
    by: FoundBy


class JobFinder:
    """Counts in `found` how each request's job was found. Tenants do not share jobs."""

    def __init__(self, prefixes: PrefixMatcher, jobs: JobTable) -> None:
        self.found: Counter[FoundBy] = Counter()
        self._prefixes = prefixes
        self._jobs = jobs
        self._replies: ReplyIds[ChainOwner] = ReplyIds()
        self._unmatched: deque[bool] = deque(maxlen=_WINDOW)
        self._has_warned = False

    def find(self, request: Request) -> Family:
        """Find the job of a request that has come."""
        owner, by = self._find_owner(request)
        if not request.session_id and owner is not None:
            job = owner.session
            known = self._jobs.get(job)
            session = known.client_session if known is not None else job
        else:
            session = request.session_id or shorten(request.request_id)
            job = job_name(session, request.cache_salt)
        entry = self._jobs.get(job)
        pending = entry.pending if entry is not None else ()
        return Family(job, session, self._prefixes.find_parent(request, job, owner, pending), by)

    def count(self, request: Request, by: FoundBy) -> None:
        """Count how the job of a request that has come was found."""
        self.found[by] += 1
        if has_history(request):
            self._watch(by)

    def note(self, request: Request, job: str, turn: str) -> None:
        """Note that the request has finished, as this turn of the job."""
        self._replies.note(request.request_id, request.cache_salt, ChainOwner(job, turn, 0))

    def find_by_reply(self, reply: str, tenants: Collection[str | None] | None = None) -> JobEntry | None:
        """Find the job that a reply belongs to, by the id that its client has got; of these tenants, or of any."""
        owner = self._replies.find(reply, tenants)
        return None if owner is None else self._jobs.get(owner.session)

    def _find_owner(self, request: Request) -> tuple[ChainOwner | None, FoundBy]:
        owner = self._find_predecessor(request)
        if owner is not None:
            return owner, "named" if request.session_id else "response"
        owner = self._prefixes.find_owner(request)
        if request.session_id:
            return owner, "named"
        if owner is not None:
            return owner, "repeated"
        return None, "unmatched" if has_history(request) else "first"

    def _find_predecessor(self, request: Request) -> ChainOwner | None:
        return self._replies.find(read_predecessor(request) or "", [request.cache_salt])

    def _watch(self, by: FoundBy) -> None:
        """Warn once when most requests that hold an earlier reply were matched with no job."""
        self._unmatched.append(by == "unmatched")
        unmatched = sum(self._unmatched)
        if self._has_warned or len(self._unmatched) < _WINDOW or 2 * unmatched <= _WINDOW:
            return
        self._has_warned = True
        logger.warning(
            "%d of the last %d requests that hold an earlier reply were matched with no job, so nothing is kept for "
            "them: their clients name no session and do not repeat their prompts. Have them send X-Session-ID "
            "(docs/clients.md).",
            unmatched,
            _WINDOW,
        )
