"""Reads the names that clients give their sessions: in headers, in the body, or in their own protocol."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers

# The header that vLLM reads.
SESSION_HEADER = "X-Session-ID"
# Under which clients name their session, the first that is there counts.
CLIENT_HEADERS = (
    "x-dynamo-session-id",
    "x-claude-code-session-id",  # Claude Code 2.1.86 or newer
    "session-id",  # Codex; older versions spell it
    "session_id",
    "x-session-affinity",  # OpenCode, to providers that are not its own
)
# Under which clients name the agent of a session that sends a request, in the same way. A main agent may have none.
AGENT_HEADERS = (
    "x-claude-code-agent-id",  # of Claude Code's sub-agents, 2.1.139 or newer
    "thread-id",  # Codex, whose sub-agents share its session-id
)
MAX_SESSION_CHARACTERS = 4096

# OpenAI's prompt_cache_key may be one for all requests of an application; Codex's is a conversation's UUID.
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
# `user_…_account_…_session_UUID`, of Claude Code before it sent JSON.
_USER_ID = re.compile(rf"user_.*_session_({_UUID.pattern})", re.IGNORECASE | re.DOTALL)
_MAX_USER_ID = 4096


def find_header(headers: Headers) -> str | None:
    """Find the session in the headers of clients other than vLLM's own. Of a header that comes twice the first counts.

    Header names are the same in any case; values are not.
    """
    return next((session for name in CLIENT_HEADERS if (session := headers.get(name))), None)


def find_agent(headers: Headers) -> str | None:
    """Find the agent of its session that sends a request, None where its client does not say."""
    return next((read_header(agent) for name in AGENT_HEADERS if (agent := headers.get(name, "").strip())), None)


def read_header(value: str) -> str:
    """Read a header's value as UTF-8, which clients send; Starlette takes all bytes for Latin-1, as other bytes are."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def find_cache_key(key: object) -> str | None:
    """Return a prompt_cache_key that is a conversation's."""
    return key if isinstance(key, str) and _UUID.fullmatch(key) else None


def find_user_session(metadata: object) -> str | None:
    """Find Claude Code's session in the `metadata` of a message: JSON or text in `user_id`."""
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if not isinstance(user, str) or len(user) > _MAX_USER_ID:
        return None
    if found := _USER_ID.fullmatch(user):
        return found[1]
    try:
        value: Any = json.loads(user)
    except (ValueError, RecursionError):
        return None
    session = value.get("session_id") if isinstance(value, dict) else None
    return find_cache_key(session)


def find_job_path(session: str) -> str:
    """Find the path of a session's job, below that of our routes."""
    return f"jobs/{quote(session, safe='')}"


def bound_session(session: str) -> str:
    """Shorten a session name to a digest where it is too long to be asked for by URL."""
    if len(session) <= MAX_SESSION_CHARACTERS:
        return session
    return "sha256:" + hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()
