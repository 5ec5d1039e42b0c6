"""Shortens what vLLM's tool parsers log of a reply that they cannot read: one line, not a traceback each time.

Models write broken calls every now and then. The API server's parser says so; ours in the engine core reads the same
reply again and has nothing to add.
"""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager

from agentcache.errors import in_one_line

_LOGGERS = ("vllm.tool_parsers.", "vllm.parser.")


class _OneLine(logging.Filter):
    """Drops what a thread logs that has entered it."""

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()

    def __enter__(self) -> None:
        self._here.silent = True

    def __exit__(self, *_: object) -> None:
        self._here.silent = False

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(self._here, "silent", False):
            return False
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.msg = f"{record.getMessage()} {type(error).__name__}: {in_one_line(error)}"
            record.args, record.exc_info = (), None
        return True


_FILTER = _OneLine()


def shorten_parser_errors() -> None:
    """Shorten what the parsers loaded so far log; may be called again."""
    # By name: a logger does not ask the filters of the loggers above it.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(_LOGGERS):
            logging.getLogger(name).addFilter(_FILTER)


def reading_again() -> AbstractContextManager[None]:
    """Silence these parsers meanwhile, in this thread."""
    return _FILTER
