"""Finds by its blocks which job a request belongs to, and which of the job's turns it goes on from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agentcache.engine.jobs.request_state import reusable_hashes
from agentcache.engine.jobs.told_prompt import has_history, read_agent, read_questions, read_roles
from agentcache.engine.jobs.turn_chains import Overlap, Prompt, PromptEnd, TurnChains, find_prompt_end
from agentcache.engine.vllm.types import Request
from agentcache.policy.replicas.chain_owners import ChainOwner, ChainOwners
from tool_runtime.learning.job_table import Parent


class PrefixMatcher:
    """`block_size` is the tokens of one of a request's block hashes. Knows 20,000 chains and 1,024 turns at most."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._owners = ChainOwners()
        self._chains = TurnChains(block_size)

    def find_owner(self, request: Request) -> ChainOwner | None:
        """Find the finished request whose prompt and reply this prompt repeats, of whatever job.

        Its prompt is enough where the client's messages are known to hold an earlier reply, which may have come back
        in other words.
        """
        tokens = request.prompt_token_ids if has_history(request) else None
        return self._owners.find(request.block_hashes, tokens or (), self._block_size)

    def find_parent(
        self, request: Request, job: str, owner: ChainOwner | None, pending: Collection[str]
    ) -> str | Parent:
        """Find the turn of the job that the request goes on from, among `pending`. `owner` is of `find_owner`.

        Several agents may share a session: a prompt without an earlier reply of the model's begins a new chat.
        """
        own = owner.request if owner is not None and owner.session == job else None
        return self._chains.find_continued(pending, self._describe(request), own)

    def compare(self, continues: str | None, request: Request) -> Overlap:
        """Compare the prompt with the turn that it goes on from; once a turn."""
        return self._chains.compare(continues, reusable_hashes(request, self._block_size))

    def count_messages(self, request: Request) -> int:
        """Count the tokens of the prompt up to the end of its last message, in full blocks."""
        return find_prompt_end(request, self._block_size).blocks * self._block_size

    def note(self, request: Request, job: str, turn: str) -> None:
        """Note that the request has finished, as this turn of the job, and that the job goes on."""
        hashes, prompt_tokens = request.block_hashes, request.num_prompt_tokens
        self._owners.note(hashes, prompt_tokens, self._block_size, session=job, request=turn)
        prompt = self._describe(request)
        end = self._note_prompt(request, prompt, job, turn)
        self._chains.note(turn, prompt, reply=_find_reply(request), end=end)

    def note_cut(self, request: Request, job: str, turn: str) -> None:
        """Note that the request was cut off: its job may go on from the prompt."""
        prompt = self._describe(request)
        self._note_prompt(request, prompt, job, turn)
        self._chains.note(turn, prompt)

    def forget(self, job: str) -> None:
        """Forget a job that is over."""
        self._owners.forget(job)

    def reset(self) -> None:
        """Forget what was cached. Whose turn a prompt goes on from is known as before."""
        self._chains.reset()

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


def _find_reply(request: Request) -> Sequence[int]:
    """Find the tokens of its reply, without the one that ended it."""
    tokens, params = request.output_token_ids, request.sampling_params
    if params is None or not tokens:
        return tokens
    ends = tokens[-1] == params.eos_token_id or tokens[-1] in params.all_stop_token_ids
    return tokens[:-1] if ends else tokens
