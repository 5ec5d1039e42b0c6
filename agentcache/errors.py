"""Every exception that agentcache raises on purpose.

AgentCacheError
├── InputError          what the user gave cannot work; the text is one line that says what to do
├── CompatibilityError  the installed vLLM is not one that the engine plug-in knows
├── ServerError         the OpenAI server did not come up, went away, or answered what it must not
└── IntegrityError      the bookkeeping of cache blocks is wrong: always a bug
"""

from __future__ import annotations


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
