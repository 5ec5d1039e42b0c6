"""What several engines know of durations, as one body of knowledge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tool_runtime.learning.durations import RecordState
from tool_runtime.learning.durations_file import read_states
from tool_runtime.learning.gap_record import MAX_COUNT, MAX_TOTAL_S
from tool_runtime.learning.tool_key import ToolKey

# Files of engines that are no more are read as well; their knowledge is as good.
MAX_FILES = 64


def find_siblings(path: Path) -> list[Path]:
    """Find the other engines' files beside this one: PATH, and PATH.RANK for each rank but the first; at most 64."""
    rank = path.suffix[1:]
    base = path.with_suffix("") if rank.isascii() and rank.isdigit() else path
    ranked = [each for each in base.parent.glob(f"{base.name}.*") if each.suffix[1:].isdigit()]
    return sorted({base, *ranked} - {path})[:MAX_FILES]


def read_siblings(path: Path) -> list[RecordState]:
    """Read what the other engines have saved, as one; a file that is missing or damaged tells nothing."""
    return merge_states([read_states(each) for each in find_siblings(path)])


def merge_states(dumps: Iterable[Sequence[RecordState]]) -> list[RecordState]:
    """Merge dumps of several engines: counts and sums are added, samples put in order of age, the oldest first."""
    merged: dict[ToolKey, RecordState] = {}
    for state in (state for dump in dumps for state in dump):
        known = merged.pop(state.key, RecordState(state.key, 0, 0.0, ()))
        merged[state.key] = RecordState(
            state.key,
            min(known.count + state.count, MAX_COUNT),
            min(known.total_s + state.total_s, MAX_TOTAL_S),
            tuple(sorted((*known.samples, *state.samples), key=lambda sample: -sample[1])),
        )
    return list(merged.values())
