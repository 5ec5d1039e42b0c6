"""One job at an agentcache server: the requests that carry the same session, until it is told that they are over."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from openai import APIConnectionError, APIStatusError

START = "agentcache serve MODEL --enable-auto-tool-choice --tool-call-parser hermes"


@contextmanager
def explain_failure(base_url: str) -> Iterator[None]:
    """Ends the program with one line where no server answers, or one that refuses what it is asked."""
    try:
        yield
    except (APIConnectionError, httpx.TransportError) as error:
        cause = error.__cause__ or error
        raise SystemExit(f"{base_url}: no server answers ({cause}); give --base-url, or start one: {START}") from error
    except (APIStatusError, httpx.HTTPStatusError) as error:
        raise SystemExit(f"{base_url}: {' '.join(str(error).split())}") from error


@contextmanager
def open_session(base_url: str, api_key: str, *, keep: bool = False) -> Iterator[str]:
    """A new session's id. On the way out the server is told to release what it keeps for the job, unless `keep`."""
    session = uuid.uuid4().hex
    print(f"session {session}")  # noqa: T201
    try:
        yield session
    finally:
        if not keep:
            _end_job(base_url, api_key, session)


def _end_job(base_url: str, api_key: str, session: str) -> None:
    root = base_url.rstrip("/").removesuffix("/v1")
    answer = httpx.delete(
        f"{root}/agentcache/jobs/{session}", headers={"Authorization": f"Bearer {api_key}"}, timeout=10
    )
    # Other servers have no such route, and policies without pins nothing to release.
    if answer.status_code != httpx.codes.NOT_FOUND:
        answer.raise_for_status()
