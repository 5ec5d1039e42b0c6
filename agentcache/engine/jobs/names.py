"""Under which name a job stands in the job table."""

from __future__ import annotations

import hashlib

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
