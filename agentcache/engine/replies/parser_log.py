"""Shortens what vLLM's tool parsers log of a reply that they cannot read: one line, not a traceback each time.

Models write broken calls every now and then. The API server's parser says so; ours in the engine core reads the same
reply again and has nothing to add.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agentcache.errors import in_one_line

_LOGGERS = ("vllm.tool_parsers.", "vllm.parser.")


_is_silent: ContextVar[bool] = ContextVar("agentcache_parsers_are_silent", default=False)


def shorten_parser_errors() -> None:
    """Shorten what the parsers loaded so far log; may be called again."""
    # By name: a logger does not ask the filters of the loggers above it.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(_LOGGERS):
            logging.getLogger(name).addFilter(pass_in_one_line)


@contextmanager
def reading_again() -> Iterator[None]:
    """Silence these parsers meanwhile, in this thread."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)


def pass_in_one_line(record: logging.LogRecord) -> bool:
    """Filter one record, for `logging`: drop it in a thread that is reading again, else put its error into its line."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        record.msg = f"{record.getMessage()} {type(error).__name__}: {in_one_line(error)}"
        record.args, record.exc_info = (), None
    return not _is_silent.get()
