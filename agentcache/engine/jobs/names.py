"""Names jobs in the job table, by the session that a client gives or by the id of a reply that it has got."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection
from typing import Generic, TypeVar

from tool_runtime.learning.job_table import MAX_ID

# A client's own name that begins so is digested as well: no client can name another's job by its digest.
_DIGEST = "sha256:"


def job_name(session: str, salt: str | None) -> str:
    """Name the job of a session of one tenant: tenants, told apart by their cache salt, do not share jobs."""
    return shorten(session) if salt is None else _digest(f"{len(salt)} {salt} {session}")


def shorten(name: str) -> str:
    """Shorten a name to one that the job table keeps as it is: a longer one it would shorten each time it is told."""
    if len(name) <= MAX_ID and not name.startswith(_DIGEST):
        return name
    # The text of a tenant's job begins with a number.
    return _digest(f"- {name}")


def tenant_name(salt: str | None) -> str | None:
    """Name the tenant that has this cache salt, None of requests without one. A salt may have any length."""
    return None if salt is None else shorten(salt)


def _digest(text: str) -> str:
    return (_DIGEST + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())[:MAX_ID]


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
