"""Brings the reason why an engine cannot start from the process that finds it to the one that the user sees.

Of an engine that did not start vLLM says that its log has the cause, which is some hundred lines up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from agentcache.errors import InputError

# Names the file that the cause goes into. Processes of the engine have it of the one that started them.
_VARIABLE = "AGENTCACHE_START_CAUSE"


def refuse_start(cause: str) -> InputError:
    """Tell the process that starts this engine, if that listens, why it cannot start, in a line. Return the error."""
    if (file := os.environ.get(_VARIABLE)) is not None:
        Path(file).write_text(cause, encoding="utf-8")
    return InputError(cause)


@contextmanager
def hear_cause() -> Iterator[None]:
    """Raise InputError with what a process of an engine that is started inside has told, in place of vLLM's error."""
    with NamedTemporaryFile("r", prefix="agentcache-", encoding="utf-8") as file:
        os.environ[_VARIABLE] = file.name
        try:
            yield
        except RuntimeError as error:
            if cause := file.read():
                raise InputError(cause) from error
            raise
        finally:
            del os.environ[_VARIABLE]
