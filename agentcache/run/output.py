"""Sends the engine's output to a log, so that the terminal stays free for ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def divert_output(log: Path) -> Iterator[TextIO]:
    """Send stdout and stderr of this process, and of every process it starts, to `log`; yield the former stdout.

    By file descriptor, because the engine's processes and its native code know nothing of `sys.stdout`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    former = [os.dup(1), os.dup(2)]
    with log.open("ab") as file, os.fdopen(os.dup(former[0]), "w", encoding="utf-8") as terminal:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield terminal
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for target, descriptor in enumerate(former, start=1):
                os.dup2(descriptor, target)
                os.close(descriptor)
