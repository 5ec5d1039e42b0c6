"""Defines every exception that agentcache raises on purpose, and the exit statuses of the command.

AgentCacheError
├── InputError          what the user gave cannot work; the text is one line that says what to do
├── CompatibilityError  the installed vLLM is not one that the engine plug-in knows
├── ServerError         the OpenAI server did not come up, went away, or answered what it must not
└── IntegrityError      the bookkeeping of cache blocks is wrong: always a bug
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final


class AgentCacheError(Exception):
    """Base of all."""


class InputError(AgentCacheError):
    """A flag, file or folder given by the user cannot work. Raised before any engine starts."""


class CompatibilityError(AgentCacheError):
    """vLLM's version or one of the signatures we rely on is not the expected one."""


class ServerError(AgentCacheError):
    """The server cannot be used: not up, gone, or without a feature that the run needs."""


class IntegrityError(AgentCacheError):
    """An owner of blocks found its own records in contradiction."""


def in_one_line(error: BaseException | str) -> str:
    """Put the text of somebody else's error, which may have line breaks, into one line."""
    return " ".join(str(error).split())


USAGE_ERROR: Final = 2
"""What the user gave cannot work; one line on stderr says why."""
INTERRUPTED: Final = 130
"""Ctrl-C ended it, as shells count signals; what was done by then is kept."""
TERMINATED: Final = 143
"""SIGTERM ended it before it served, as shells count signals."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" for the closest known name, or nothing where none is close."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
