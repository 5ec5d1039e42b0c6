"""Chooses the engine of each request that one API server sends, from vLLM's requests and outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

from agentcache.engine.constants import ANSWER_MARK, LEFT_ARGUMENT
from agentcache.engine.marks import job_name, shorten
from agentcache.engine.vllm.types import EngineCoreOutputs, EngineCoreRequest
from agentcache.errors import ServerError
from agentcache.front_end.placement_process import JobPlaces
from agentcache.front_end.request_marks import join_marks
from agentcache.front_end.shared_placement import SharedPlacement
from agentcache.policy.replicas.chain import Chain
from agentcache.policy.replicas.job_homes import JobHome

# Ends a session's job at one engine: engine, session as that engine knows it, tenant.
Release = Callable[[int, str, str | None], None]

_Answer = TypeVar("_Answer")


class _Turn(NamedTuple):
    request: str
    job: str
    tenant: str | None
    reply: list[int]


class Placer:
    """`release` is called for what a job leaves behind when it moves. `clock` is that of all processes of a host.

    While the placement is lost, no engine is chosen, and nothing is known of jobs.
    """

    def __init__(
        self, placement: JobPlaces | SharedPlacement, release: Release, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.placement = placement
        self._release = release
        self._clock = clock
        # Requests under way.
        self._turns: dict[str, _Turn] = {}

    def choose(self, request: EngineCoreRequest) -> int | None:
        """Choose the engine; None for a request that is no job's turn, or that names its engine."""
        return self._ask(lambda: self._choose(request))

    def note(self, outputs: EngineCoreOutputs) -> None:
        """Note the tokens of a step, and the requests that are over."""
        self._ask(lambda: self._note(outputs))

    def end_session(self, session: str, tenants: Collection[str | None] | None) -> None:
        """Forget the session's jobs of these tenants, or that of the reply which has `session` as its id."""
        self._ask(lambda: self.placement.end_session(session, tenants))

    def find(self, session: str, tenants: Collection[str | None] | None) -> JobHome | None:
        """Find the home of the session's job, of the first tenant that has one, or of the job of the reply."""
        return self._ask(lambda: next(iter(self.placement.find_homes(session, tenants)), None))

    def _ask(self, ask: Callable[[], _Answer]) -> _Answer | None:
        try:
            return ask()
        except ServerError:
            # The placement takes what it was not told the end of for over.
            self._turns.clear()
            return None

    def _choose(self, request: EngineCoreRequest) -> int | None:
        tokens = request.prompt_token_ids
        is_turn = request.sampling_params is not None and not request.resumable
        if request.data_parallel_rank is not None or not is_turn or not tokens:
            return None
        adapter = request.lora_request.lora_name if request.lora_request is not None else ""
        chain = Chain(tokens, self.placement.block_tokens, origin=f"{request.cache_salt or ''}\0{adapter}")
        session = request.session_id
        job = job_name(session, request.cache_salt) if session else None
        name = shorten(request.request_id)
        placed = self.placement.place(name, chain, self._clock(), job=job)
        self._turns[request.request_id] = _Turn(name, placed.job, request.cache_salt, [])
        if placed.moved_from is not None:
            # Without a session the engine, too, names a job after its first request.
            self._release(placed.moved_from, session or placed.job, request.cache_salt)
            _tell_left(request, placed.left_tokens)
        return placed.engine

    def _note(self, outputs: EngineCoreOutputs) -> None:
        for output in outputs.outputs:
            if (turn := self._turns.get(output.request_id)) is not None:
                if not turn.reply:
                    self.placement.got_token(turn.request)
                turn.reply.extend(output.new_token_ids)
        finished = outputs.finished_requests or set()
        for request in finished:
            if (turn := self._turns.pop(request, None)) is not None:
                answered, replied = request + ANSWER_MARK in finished, (request, turn.tenant, turn.job)
                self.placement.finished(turn.request, turn.reply, self._clock(), answered=answered, replied=replied)


def _tell_left(request: EngineCoreRequest, tokens: int) -> None:
    """Tell a moved job's new engine how many tokens of this prompt its old one has cached."""
    if request.sampling_params is not None and tokens:
        # The samples of one request share theirs, and only the first of them moves the job.
        request.sampling_params = join_marks(request.sampling_params, {LEFT_ARGUMENT: tokens})
