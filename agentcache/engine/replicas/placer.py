"""Chooses the engine of each request that one API server sends, from vLLM's requests and outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest

from agentcache.engine.constants import ANSWER_MARK
from agentcache.engine.jobs.names import job_name
from agentcache.engine.replicas.placement_process import SharedPlacement
from agentcache.policy.replicas.chain import Chain
from agentcache.policy.replicas.job_homes import JobHome
from agentcache.policy.replicas.placement import Placement

# Ends a session's job at one engine: engine, session as that engine knows it, tenant.
Release = Callable[[int, str, str | None], None]


class Placer:
    """`release` is called for what a job leaves behind when it moves. `clock` is that of all processes of a host."""

    def __init__(
        self, placement: Placement | SharedPlacement, release: Release, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.placement = placement
        self._release = release
        self._clock = clock
        # The replies of requests under way.
        self._replies: dict[str, list[int]] = {}

    def choose(self, request: EngineCoreRequest) -> int | None:
        """Choose the engine; None for a request that is nobody's turn, or that names its engine."""
        tokens = request.prompt_token_ids
        is_turn = request.sampling_params is not None and not request.resumable
        if request.data_parallel_rank is not None or not is_turn or not tokens:
            return None
        adapter = request.lora_request.lora_name if request.lora_request is not None else ""
        chain = Chain(tokens, self.placement.block_tokens, origin=f"{request.cache_salt or ''}\0{adapter}")
        session = request.session_id
        job = job_name(session, request.cache_salt) if session else None
        placed = self.placement.place(request.request_id, chain, self._clock(), job=job)
        self._replies[request.request_id] = []
        if placed.moved_from is not None:
            # Without a session the engine, too, names a job after its first request.
            self._release(placed.moved_from, session or placed.job, request.cache_salt)
        return placed.engine

    def note(self, outputs: EngineCoreOutputs) -> None:
        """Note the tokens of a step, and the requests that are over."""
        for output in outputs.outputs:
            if (reply := self._replies.get(output.request_id)) is not None:
                if not reply:
                    self.placement.got_token(output.request_id)
                reply.extend(output.new_token_ids)
        finished = outputs.finished_requests or set()
        for request in finished:
            if (reply := self._replies.pop(request, None)) is not None:
                answered = request + ANSWER_MARK in finished
                self.placement.finished(request, reply, self._clock(), answered=answered)

    def end_session(self, session: str, tenants: Collection[str | None] | None) -> None:
        """Forget the session's jobs of these tenants. None of all is read as none: their names are not known here."""
        for tenant in (None,) if tenants is None else tenants:
            self.placement.end_job(job_name(session, tenant))

    def find(self, session: str, tenants: Collection[str | None] | None) -> JobHome | None:
        """Find the home of the session's job, of the first tenant that has one."""
        names = (job_name(session, tenant) for tenant in ((None,) if tenants is None else tenants))
        return next((home for name in names if (home := self.placement.find(name)) is not None), None)
