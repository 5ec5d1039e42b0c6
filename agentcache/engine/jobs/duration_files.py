"""Finds the files in which engines keep what they have learned of tool durations, and refuses files of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from agentcache.config import RuntimeConfig
from agentcache.config_reader import CONFIG_KEY
from agentcache.errors import InputError
from tool_runtime.learning.duration_store import DurationStore
from tool_runtime.learning.durations import Durations
from tool_runtime.learning.durations_file import ForeignFileError, check_file


def find_file(durations_file: str, rank: int) -> Path:
    """Return where the data-parallel engine `rank` keeps what it has learned itself."""
    path = Path(durations_file)
    return path.with_name(f"{path.name}.{rank}") if rank else path


def open_store(path: Path, durations: Durations, clock: Callable[[], float]) -> DurationStore:
    """Open the store of an engine's file. Raises InputError if that holds anything but durations: it would be replaced.

    `clock` gives seconds, those of `durations`.
    """
    try:
        return DurationStore(path, durations, clock)
    except ForeignFileError as error:
        raise _refuse(error) from None


def check_files(runtime: RuntimeConfig, ranks: Iterable[int]) -> None:
    """Raise InputError if the file of one of these engines holds anything but durations: it would be replaced."""
    if (given := runtime.durations_file) is None:
        return
    try:
        for rank in ranks:
            check_file(find_file(given, rank))
    except ForeignFileError as error:
        raise _refuse(error) from None


def _refuse(error: ForeignFileError) -> InputError:
    return InputError(f"additional_config: {CONFIG_KEY}.runtime.durations_file: {error}")
