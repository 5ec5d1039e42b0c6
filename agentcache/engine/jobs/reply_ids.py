"""Whose a reply was, by the id that its client has got."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection
from typing import Generic, TypeVar

from agentcache.engine.jobs.names import shorten, tenant_name

_MAX_REPLIES = 10_000
# The engine adds a suffix to the id that a client gets; a response's requests were numbered by the server before.
_REPLY = re.compile(r"(resp_.*(?=_\d+-)|(?!resp_).*)(?:_\d+)?-[^-]*$", re.DOTALL)

Owner = TypeVar("Owner")


class ReplyIds(Generic[Owner]):
    """The latest replies of finished requests."""

    def __init__(self) -> None:
        # With the tenant. A client may have chosen the id: it is shortened.
        self._owners: OrderedDict[str, tuple[Owner, str | None]] = OrderedDict()

    def note(self, request_id: str, salt: str | None, owner: Owner) -> None:
        """Note that a request has finished, under the id that the engine has for it."""
        if found := _REPLY.match(request_id):
            self._owners[shorten(found[1])] = owner, tenant_name(salt)
            if len(self._owners) > _MAX_REPLIES:
                self._owners.popitem(last=False)

    def find(self, reply: str, tenants: Collection[str | None] | None) -> Owner | None:
        """Find whose a reply was, if it was one of these tenants', given by their cache salts, or of any."""
        if (found := self._owners.get(shorten(reply))) is None:
            return None
        owner, tenant = found
        return owner if tenants is None or tenant in map(tenant_name, tenants) else None
