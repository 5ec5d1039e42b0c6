"""Finds the session of an HTTP request in all the ways in which clients name it: in headers, in the body, or in theirs.

vLLM itself knows one header and a field of its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers

from agentcache.engine.vllm.base import VLLMValidationError
from agentcache.front_end.agentic_context import AgenticContext, read_context
from agentcache.front_end.family_roots import FamilyRoots

# The header that vLLM reads.
SESSION_HEADER = "X-Session-ID"
# Under which clients name their session, the first that is there counts.
CLIENT_HEADERS = (
    "x-dynamo-session-id",
    "x-claude-code-session-id",  # Claude Code 2.1.86 or newer
    "session-id",  # Codex; older versions spell it
    "session_id",
    "x-session-affinity",  # OpenCode, to providers that are not its own
    "x-litellm-session-id",  # OpenHands, and what stands behind LiteLLM's proxy
    "x-agent-session-id",  # Hermes Agent
)
# Under which clients name the agent of a session that sends a request, in the same way. A main agent may have none.
AGENT_HEADERS = (
    "x-claude-code-agent-id",  # of Claude Code's sub-agents, 2.1.139 or newer
    "thread-id",  # Codex, whose sub-agents share its session-id; its main agent's is that
)
# Beside it, the agent that has begun that one.
PARENT_AGENT_HEADERS = ("x-claude-code-parent-agent-id", "x-codex-parent-thread-id")
# Of clients whose sub-agents have sessions of their own, the session that has begun this one.
PARENT_HEADERS = ("x-dynamo-parent-session-id", "x-parent-session-id")  # Dynamo; OpenCode
MAX_SESSION_CHARACTERS = 4096

# OpenAI's prompt_cache_key may be one for all requests of an application; Codex's is a conversation's UUID.
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
# `user_…_account_…_session_UUID`, of Claude Code before it sent JSON.
_USER_ID = re.compile(rf"user_.*_session_({_UUID.pattern})", re.IGNORECASE | re.DOTALL)
_MAX_USER_ID = 4096
_MESSAGES = "/v1/messages"

Salt = Callable[[str | None], str | None]


class SessionRequest:
    """What an HTTP request tells of its session: by its headers, and by its body once that is read."""

    def __init__(self, headers: Headers, roots: FamilyRoots | None = None, salt: Salt = lambda own: own) -> None:
        """`roots` has the sessions of sub-agents, `salt` makes the tenant's salt of the client's own."""
        self.agent = _read_first(headers, AGENT_HEADERS)
        """Which of its session's agents sends it, if its client says so; None for the main one."""
        self.parent = _read_first(headers, PARENT_AGENT_HEADERS)
        """The agent that has begun that one; None for the main one."""
        self.context: AgenticContext | None = None
        """What its client tells by vllm-router's contract."""
        self._parent_session = _read_first(headers, PARENT_HEADERS)
        self._roots = FamilyRoots() if roots is None else roots
        self._salt = salt
        self.message: Mapping[str, Any] | None = None
        """The body of an Anthropic message, which vLLM makes a chat of; None in other requests."""
        # With the cache salts of their requests: the body has the salt, and may name another session than the headers.
        self.found: set[tuple[str, str | None]] = set()
        self.header = _find_session(headers)
        self._session = read_header(self.header)
        # In the body, where vLLM does not look: that of a message, and what counts where there is no other.
        self._of_message: object = None
        self._other: str | None = None

    def read_body(self, body: Mapping[str, Any], path: str) -> None:
        """Read the body, parsed and no more, of a request that goes to `path`; take the contract out of it."""
        self.context = read_context(body.get("vllm_xargs"))
        self._other = _find_cache_key(body.get("prompt_cache_key"))
        if path == _MESSAGES:
            self.message = body
            self._of_message = body.get("session_id")
            self._other = _find_user_session(body.get("metadata"))

    def name_session(self, request: Any, found: str | None) -> str | None:
        """Return and note the session of a valid request, that of its family where a sub-agent has its own."""
        if self._of_message is not None:
            _check_text(self._of_message)
        context = self.context or AgenticContext()
        session = context.session or self._of_message or request.session_id or self._session or found or self._other
        if not session:
            return None
        session = bound_session(_check_text(session))
        self.found.add((session, request.cache_salt))
        return self._join_family(session, context, request.cache_salt)

    def _join_family(self, session: str, context: AgenticContext, tenant: str | None) -> str:
        """Return the session of the family; note who asks there, and for whom."""
        parent = context.parent or (None if context.session else self._parent_session)
        parent = parent and bound_session(parent)
        root = self._roots.find(session, parent, self._salt(tenant), context.root_program_id)
        names = self.agent, self.parent
        if root != session:
            names = session, parent or self.parent
        elif context.agent_id is not None:
            names = context.agent_id, context.parent_agent_id
        # The main agent has no name of its own there.
        self.agent, self.parent = (None if name == root else name for name in names)
        return root

    def read_session(self, found: str, tenant: str | None) -> str:
        """Return the session that vLLM has found in the headers, as text, and note it."""
        session = self._session if found == self.header else found
        self.found.add((session, tenant))
        return self._join_family(session, AgenticContext(), tenant)


# None where no request of our API server is in progress.
asking: ContextVar[SessionRequest | None] = ContextVar("agentcache_asking", default=None)


def _find_session(headers: Headers) -> str:
    """Find the session as the header that vLLM reads is to have it, shortened if it is too long; empty for none."""
    found = headers.get(SESSION_HEADER) or _find_header(headers) or ""
    session = read_header(found)
    return found if (bounded := bound_session(session)) == session else bounded


def _find_header(headers: Headers) -> str | None:
    """Find the session in the headers of clients other than vLLM's own. Of a header that comes twice the first counts.

    Header names are the same in any case; values are not.
    """
    return next((session for name in CLIENT_HEADERS if (session := headers.get(name))), None)


def _read_first(headers: Headers, names: Iterable[str]) -> str | None:
    """Read the first of these headers that is there and not empty."""
    return next((read_header(value) for name in names if (value := headers.get(name, "").strip())), None)


def read_header(value: str) -> str:
    """Read a header's value as UTF-8, which clients send; Starlette takes all bytes for Latin-1, as other bytes are."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _find_cache_key(key: object) -> str | None:
    """Return a prompt_cache_key that is a conversation's."""
    return key if isinstance(key, str) and _UUID.fullmatch(key) else None


def _find_user_session(metadata: object) -> str | None:
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
    return _find_cache_key(session)


def _check_text(session: object) -> str:
    """Raise what the server answers as a 400 for a session that is no text."""
    if not isinstance(session, str):
        raise VLLMValidationError("session_id: must be text", parameter="session_id")
    try:
        session.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair, as JSON can spell it; it would not reach the engine.
        raise VLLMValidationError("session_id: must be text that UTF-8 can encode", parameter="session_id") from None
    return session


def find_job_path(session: str) -> str:
    """Find the path of a session's job, below that of our routes."""
    return f"jobs/{quote(session, safe='')}"


def bound_session(session: str) -> str:
    """Shorten a session name to a digest where it is too long to be asked for by URL."""
    if len(session) <= MAX_SESSION_CHARACTERS:
        return session
    return "sha256:" + hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()
