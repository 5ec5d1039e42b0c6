"""Under which name a job stands in the job table."""

from __future__ import annotations

import hashlib

from tool_runtime.job_table import MAX_ID


def job_name(session: str, salt: str | None) -> str:
    """Of a session of one tenant: tenants, told apart by their cache salt, do not share jobs."""
    return shorten(session) if salt is None else _digest(f"{len(salt)} {salt} {session}")


def shorten(name: str) -> str:
    """A name that the job table keeps as it is. What is longer it would shorten anew each time that it is told."""
    return name if len(name) <= MAX_ID else _digest(name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
