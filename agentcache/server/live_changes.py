"""Prepares what the live report shows of prompts that left the last turn of their job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agentcache.engine.jobs.views import ChangeText, ChangeView
from agentcache.report.content import MAX_LISTED, Listing
from agentcache.report.table import NO_DATA
from agentcache.server.live_run import NamedJob

_COLUMNS = ("Job", "Turn", "Token", "Message", "What changed")
_TEXT_COLUMNS = ("Text before it", "It was", "It is")


class _Change(NamedTuple):
    job: str
    turn: int
    view: ChangeView

    @property
    def text(self) -> ChangeText | None:
        return self.view.text if isinstance(self.view.text, ChangeText) else None


def list_changes(jobs: Sequence[NamedJob]) -> Listing:
    """List the latest change of each job, the most recently active job first; text only where any may be shown."""
    latest = list(_find_latest(jobs))
    shown = latest[:MAX_LISTED]
    has_text = any(change.text for change in shown)
    rows = [_describe(change) + (_describe_text(change.text) if has_text else ()) for change in shown]
    return Listing(_COLUMNS + (_TEXT_COLUMNS if has_text else ()), rows, len(latest) - len(shown))


def _find_latest(jobs: Sequence[NamedJob]) -> Iterator[_Change]:
    for job in sorted(jobs, key=lambda job: job.idle_s):
        for turn in reversed(job.view.turns):
            if turn.change is not None:
                yield _Change(job.name, turn.turn, turn.change)
                break


def _describe(change: _Change) -> tuple[str, ...]:
    at_token = change.view.at_token if change.text is None else change.text.at_token
    return change.job, f"{change.turn:,}", f"{at_token:,}", change.view.role or NO_DATA, change.view.cause


def _describe_text(text: ChangeText | None) -> tuple[str, ...]:
    return (NO_DATA,) * len(_TEXT_COLUMNS) if text is None else (text.before, text.was, text.now)
