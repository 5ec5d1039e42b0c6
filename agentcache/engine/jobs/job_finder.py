"""Finds the job and the turn that a request goes on from, and tells turns from steps of a search."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from agentcache.engine.jobs.turn_chains import Prompt, TurnChains, find_prompt_end
from agentcache.engine.marks import (
    ReplyIds,
    has_history,
    job_name,
    read_agent,
    read_predecessor,
    read_questions,
    read_roles,
    read_sent,
    reusable_hashes,
    shorten,
)
from agentcache.engine.request_state import LeftBranch, Overlap, PromptEnd
from agentcache.engine.views import FoundBy
from agentcache.engine.vllm.base import init_logger
from agentcache.engine.vllm.types import Request
from tool_runtime.learning.job_blocks import ChainOwner, ChainOwners
from tool_runtime.learning.job_entry import JobEntry, PendingTurn
from tool_runtime.learning.job_table import JobTable, Parent, bounded_id
from tool_runtime.learning.tool_key import HUMAN


def generates_text(request: Request) -> bool:
    """Tell whether it generates text in one go, as embeddings and live streams of input do not."""
    return request.pooling_params is None and not request.resumable


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
    """Knows the latest replies, 20,000 chains and 1,024 turns. Tenants do not share jobs.

    `block_size` is the tokens of one of a request's block hashes.
    """

    def __init__(self, block_size: int, jobs: JobTable) -> None:
        self._block_size = block_size
        self._jobs = jobs
        self._owners = ChainOwners()
        self._chains = TurnChains(block_size)
        self._replies: ReplyIds[ChainOwner] = ReplyIds()
        self._unmatched: deque[bool] = deque(maxlen=_WINDOW)
        self._has_warned = False
        # Of the job that came back last, where that could be told: a new job's client is most likely to do the same.
        self._repeats_reply = True

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
        pending = entry.pending if entry is not None else {}
        return Family(job, session, self._find_parent(request, job, owner, pending), by)

    def note_reply(self, request: Request, job: str, turn: str) -> None:
        """Note that the request has finished, as this turn of the job: its client may go on by the reply's id."""
        self._replies.note(request.request_id, request.cache_salt, ChainOwner(job, turn, 0))

    def compare(self, continues: str | None, request: Request) -> Overlap:
        """Compare the prompt with the turn that it goes on from; once a turn."""
        return self._chains.compare(continues, self._describe(request))

    @property
    def left(self) -> list[LeftBranch]:
        """What prompts have left for certain, until somebody takes it."""
        return self._chains.left

    def repeats_reply(self, request: Request, overlap: Overlap) -> bool:
        """Learn from the prompt, and tell whether the job's prompts are likely to have the replies before them."""
        told = overlap.repeats_reply(request.prompt_token_ids or (), self._block_size)
        self._repeats_reply = self._repeats_reply if told is None else told
        return self._repeats_reply

    def count_messages(self, request: Request) -> int:
        """Count the tokens of the prompt up to the end of its last message, in full blocks."""
        return find_prompt_end(request, self._block_size).blocks * self._block_size

    def note_turn(self, request: Request, job: str, turn: str) -> None:
        """Note that the request has finished, as this turn of the job, and that the job goes on."""
        hashes, prompt_tokens = request.block_hashes, request.num_prompt_tokens
        self._owners.note(hashes, prompt_tokens, self._block_size, session=job, request=turn)
        prompt = self._describe(request)
        end = self._note_prompt(request, prompt, job, turn)
        self._chains.note(turn, prompt, reply=_find_reply(request), end=end, job=job)

    def note_cut(self, request: Request, job: str, turn: str) -> None:
        """Note that the request was cut off: its job may go on from the prompt."""
        prompt = self._describe(request)
        self._note_prompt(request, prompt, job, turn)
        self._chains.note(turn, prompt, job=job)

    def leave(self, turn: str, shared_tokens: int) -> None:
        """Note that nothing goes on from the turn, whose first tokens others have as well."""
        self._chains.leave(turn, shared_tokens // self._block_size)

    def forget(self, job: str) -> None:
        """Forget a job that is over."""
        self._owners.forget(job)
        self._chains.forget(job)

    def reset(self) -> None:
        """Forget which blocks are cached. A prompt is still matched to the turn that it continues."""
        self._chains.reset()

    def find_jobs(
        self, session: str, tenants: Collection[str | None] | None, ended: Collection[JobEntry] = ()
    ) -> list[JobEntry]:
        """Find jobs by their session, or a sub-agent's; where none has it, the job of the reply that has it as its id.

        They are in the table or, behind those, among the `ended` that have left it.
        """
        named = None if tenants is None else {job_name(session, tenant) for tenant in tenants}
        client_session = bounded_id(session)
        known = *self._jobs.find(session), *(entry for entry in ended if entry.client_session == client_session)
        jobs = [entry for entry in known if named is None or entry.session in named]
        jobs = jobs or self._find_families(session, tenants)
        if jobs or (owner := self._replies.find(session, tenants)) is None:
            return jobs
        return [entry for entry in (self._jobs.get(owner.session), *ended) if entry and entry.session == owner.session]

    def _find_families(self, session: str, tenants: Collection[str | None] | None) -> list[JobEntry]:
        """Find the jobs in which a sub-agent has this session, or this name."""
        jobs = [entry for entry in self._jobs.jobs if shorten(session) in entry.agents]
        if tenants is None:
            return jobs
        return [entry for entry in jobs if entry.session in {job_name(entry.client_session, salt) for salt in tenants}]

    def _find_owner(self, request: Request) -> tuple[ChainOwner | None, FoundBy]:
        owner = self._find_predecessor(request)
        if owner is not None:
            return owner, "named" if request.session_id else "response"
        owner = self._find_repeated(request)
        if request.session_id:
            return owner, "named"
        if owner is not None:
            return owner, "repeated"
        return None, "unmatched" if has_history(request) else "first"

    def _find_predecessor(self, request: Request) -> ChainOwner | None:
        return self._replies.find(read_predecessor(request) or "", [request.cache_salt])

    def _find_repeated(self, request: Request) -> ChainOwner | None:
        """Find the finished request whose prompt and reply this prompt repeats, of whatever job.

        Its prompt is enough where the client's messages are known to hold an earlier reply, which may have come back
        in other words.
        """
        tokens = request.prompt_token_ids if has_history(request) else None
        return self._owners.find(request.block_hashes, tokens or (), self._block_size)

    def _find_parent(
        self, request: Request, job: str, owner: ChainOwner | None, pending: Mapping[str, PendingTurn]
    ) -> str | Parent:
        """Find the turn of the job that the request goes on from, among `pending`. `owner` is who it repeats.

        Several agents may share a session: a prompt without an earlier reply of the model's begins a new chat.
        """
        own = owner.request if owner is not None and owner.session == job else None
        answers = [turn for turn, waits in pending.items() if waits.key == HUMAN]
        return self._chains.find_continued(pending, self._describe(request), own, answers)

    def _describe(self, request: Request) -> Prompt:
        """Describe its prompt, and what the request has left by now."""
        asked, answered = read_questions(request)
        return Prompt(
            reusable_hashes(request, self._block_size),
            request.prompt_token_ids or (),
            roles=read_roles(request),
            asked=asked,
            answered=answered,
            agent=read_agent(request),
            sent=read_sent(request),
        )

    def _note_prompt(self, request: Request, prompt: Prompt, job: str, turn: str) -> PromptEnd:
        end = find_prompt_end(request, self._block_size)
        # Without a block nothing tells tenants apart, and what an image shows is in no token. With EAGLE or MTP the
        # hash of the last full block waits for the token behind it, in vLLM 0.33: a request may end before that.
        is_hashed = 0 < end.blocks <= len(request.block_hashes)
        if is_hashed and prompt.roles and not request.has_encoder_inputs:
            owner = ChainOwner(job, turn, end.blocks, request.num_prompt_tokens)
            self._owners.note_prompt(request.block_hashes[end.blocks - 1], end.tail, owner)
        return end

    def watch(self, request: Request, by: FoundBy) -> None:
        """Warn once when most requests that hold an earlier reply were matched with no job."""
        if not has_history(request):
            return
        self._unmatched.append(by == "unmatched")
        unmatched = sum(self._unmatched)
        if self._has_warned or len(self._unmatched) < _WINDOW or 2 * unmatched <= _WINDOW:
            return
        self._has_warned = True
        logger.warning(
            "%d of the last %d requests that hold an earlier reply were matched with no job, so nothing is kept for "
            "them: their clients name no session and do not repeat their prompts. Have them send X-Session-ID "
            "(docs/sessions.md).",
            unmatched,
            _WINDOW,
        )


def _find_reply(request: Request) -> Sequence[int]:
    """Find the tokens of its reply, without the one that ended it."""
    tokens, params = request.output_token_ids, request.sampling_params
    if params is None or not tokens:
        return tokens
    ends = tokens[-1] == params.eos_token_id or tokens[-1] in params.all_stop_token_ids
    return tokens[:-1] if ends else tokens
