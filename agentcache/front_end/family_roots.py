"""Remembers to which session's family each session of a sub-agent belongs."""

from __future__ import annotations

from cachetools import LRUCache

from agentcache.engine.marks import job_name

_MAX_BYTES = 16 * 2**20
# A short name as a key, and its places in the table.
_ENTRY_BYTES = 400


class FamilyRoots:
    """The root of each session that is a sub-agent's or has any, by tenant, of those that were named last.

    **What is known first counts**: a session that has been given a root, or taken for one, keeps that, whatever its
    requests say later. So there are no circles, and no chain is followed, however long it is.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._roots: LRUCache[str, str] = LRUCache(max_bytes, getsizeof=lambda root: _ENTRY_BYTES + 4 * len(root))

    def __len__(self) -> int:
        """Return how many sessions are known."""
        return len(self._roots)

    def find(self, session: str, parent: str | None, tenant: str | None, root: str | None = None) -> str:
        """Find the root of a session that says it was begun by `parent`; itself if it was begun by none.

        A parent that is not known belongs to `root`, or is one itself.
        """
        key = job_name(session, tenant)
        if (known := self._roots.get(key)) is not None:
            return known
        if not parent or session in (parent, root):
            return session
        found = self._roots[key] = self._roots.setdefault(job_name(parent, tenant), root or parent)
        # It is used as often as all that hang on it.
        self._roots[job_name(found, tenant)] = found
        return found
