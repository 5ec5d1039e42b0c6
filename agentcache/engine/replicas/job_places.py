"""A placement that knows the replies of jobs by their ids as well."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agentcache.engine.jobs.names import ReplyIds
from agentcache.policy.replicas.placement import Placement


class JobPlaces(Placement):
    """What all API servers know together: a client asks any of them about any job, by its session or by a reply."""

    def __init__(self, engines: int, **settings: Any) -> None:
        """As a placement."""
        super().__init__(engines, **settings)
        self._replied: ReplyIds[str] = ReplyIds()

    def note_reply(self, request: str, tenant: str | None, job: str) -> None:
        """Note that a request of the job has finished, under the id that the engine has for it."""
        self._replied.note(request, tenant, job)

    def find_replied(self, reply: str, tenants: Collection[str | None] | None) -> str | None:
        """Find the job of a reply, by the id that its client has got, if it is one of these tenants', or of any."""
        return self._replied.find(reply, tenants)
