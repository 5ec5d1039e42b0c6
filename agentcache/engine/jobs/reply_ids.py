"""Whose a reply was, by the id that its client has got."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Generic, TypeVar

from agentcache.engine.jobs.names import shorten, tenant_name

_MAX_REPLIES = 10_000
_RESPONSE = "resp_"

Owner = TypeVar("Owner")


class ReplyIds(Generic[Owner]):
    """The latest replies of finished requests."""

    def __init__(self) -> None:
        # With the tenant. A client may have chosen the id: it is shortened.
        self._owners: OrderedDict[str, tuple[Owner, str | None]] = OrderedDict()

    def note(self, request_id: str, salt: str | None, owner: Owner) -> None:
        """Note that a request has finished, under the id that the engine has for it."""
        if reply := _find_reply(request_id):
            self._owners[shorten(reply)] = owner, tenant_name(salt)
            if len(self._owners) > _MAX_REPLIES:
                self._owners.popitem(last=False)

    def find(self, reply: str, tenants: Collection[str | None] | None) -> Owner | None:
        """Find whose a reply was, if it was one of these tenants', given by their cache salts, or of any."""
        if (found := self._owners.get(shorten(reply))) is None:
            return None
        owner, tenant = found
        return owner if tenants is None or tenant in map(tenant_name, tenants) else None


def _find_reply(request_id: str) -> str | None:
    """Find the id that the client gets. The engine adds a suffix to it, the server a number to that of a response."""
    reply, dash, _ = request_id.rpartition("-")
    if not dash:
        return None
    if not reply.startswith(_RESPONSE):
        return reply
    response, _, number = reply.rpartition("_")
    return response if number.isdecimal() and response.startswith(_RESPONSE) else None
