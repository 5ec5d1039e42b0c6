"""Follows sub-agents, and what clients tell of requests: where they stand, and what is worth nothing by then."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentcache.engine.blocks.pins import PinEnd, Pins
from agentcache.engine.jobs.job_finder import JobFinder
from agentcache.engine.jobs.promises import Promises
from agentcache.engine.marks import Expected, read_agent, read_expected, read_parent, tenant_name
from agentcache.engine.request_state import RequestState, Told
from agentcache.engine.vllm.types import Request
from tool_runtime.learning.job_entry import Agent, Gap, JobEntry, PendingTurn
from tool_runtime.learning.tool_key import HUMAN


@dataclass(frozen=True, slots=True)
class FamilyBooks:
    """Asked for jobs of which clients tell more than the session. `pins` is None where there are none."""

    finder: JobFinder
    pins: Pins | None
    promises: Promises = field(default_factory=Promises)

    def hear(self, request: Request, entry: JobEntry, gap: Gap | None) -> Told:
        """Book a request of the job; return what its client tells. `gap` is behind the turn before it, if any.

        Sub-agents that have answered are over once the one that began them goes on. One for which no agent waits counts
        as if it were a job of its own.
        """
        name, expected = read_agent(request), read_expected(request)
        if gap is not None:
            self.promises.returned(gap.request, gap.seconds)
            for over in entry.end_answered(name):
                self._leave(over)
        if not self.promises.believes(_find_client(request, entry)):
            expected = Expected(
                expected.blocks_parent, deadline_seconds=expected.deadline_seconds, priority=expected.priority
            )
        if name is None:
            return Told(None, expected)
        agent = entry.find_agent(name, read_parent(request), entry.last_active_s, blocks=expected.blocks_parent)
        behind = sum(each.running for each in entry.agents.values()) - 1
        told = Told(agent, expected, behind)
        return told if entry.is_awaited(agent) else told._replace(since_s=agent.began_s)

    def admitted(self, state: RequestState, agent: Agent) -> None:
        """Note what of an agent's first prompt was there before it: that it shares with others of its kind.

        Where that was little, it is the first of its kind, and all of the prompt may be what others begin with.
        """
        turn = state.turn
        if not agent.turns and not agent.shared_tokens:
            is_first = 2 * turn.cached_tokens < turn.prompt_tokens
            agent.shared_tokens = turn.prompt_tokens if is_first else turn.cached_tokens

    def finished(self, request: Request, state: RequestState, pending: PendingTurn) -> bool:
        """Book a whole reply; return whether its agent goes on from it: others are not waited for.

        A sub-agent is over when it has answered and no agent waits for it, or its client says so.
        """
        agent, expected = state.told.agent, state.told.expected
        client, resumes = _find_client(request, state.entry), expected.expected_resume is not False
        # Those of a client that is not believed are judged as well, so that it may be believed again.
        self.promises.finished(client, state.request, read_expected(request), request.num_output_tokens)
        if agent is None:
            return resumes
        agent.turn = state.request
        agent.turns += 1
        if pending.key != HUMAN or (resumes and state.entry.is_awaited(agent)):
            return resumes
        self.end(state.entry, agent)
        return False

    def end(self, entry: JobEntry, agent: Agent) -> None:
        """End an agent: what it has left, but for what others have, is worth nothing from now on."""
        entry.end_agent(agent)
        self._leave(agent)

    def _leave(self, agent: Agent) -> None:
        if self.pins is not None:
            self.pins.end(agent.turn, PinEnd.JOB_OVER)
        self.finder.leave(agent.turn, agent.shared_tokens)


def _find_client(request: Request, entry: JobEntry) -> str:
    return tenant_name(request.cache_salt) or entry.session
