"""Puts text in the place of the token ids around which prompts left their job's last turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

Decode = Callable[[Sequence[int]], str]
Values = dict[str, Any]

# Of each part. Most tokens are a few characters, and one can be a line of them.
_MAX_CHARACTERS = 160
# Of all jobs that are listed at once. One takes a tenth of a millisecond.
_MAX_LISTED_TEXTS = 50


def write_all(jobs: Iterable[Values], decode: Decode | None) -> None:
    """Write the text of every change of the jobs, EngineJobs as plain values; None where nothing decodes."""
    for change in chain.from_iterable(map(_find_changes, jobs)):
        change["text"] = _write(change["text"], decode)


def write_latest(jobs: Iterable[Values], decode: Decode | None) -> None:
    """Write the text of each job's latest change, of the first 50 jobs that have one; of all others None."""
    found = [changes for job in jobs if (changes := _find_changes(job))]
    for number, changes in enumerate(found):
        changes[0]["text"] = _write(changes[0]["text"], decode if number < _MAX_LISTED_TEXTS else None)
        for change in changes[1:]:
            change["text"] = None


def _find_changes(job: Values) -> list[Values]:
    """Find those that the engine tells tokens of, the latest first."""
    changes = [turn["change"] for turn in reversed(job["turns"])]
    return [change for change in changes if change is not None and change["text"] is not None]


def _write(tokens: Values, decode: Decode | None) -> Values | None:
    if decode is None:
        return None
    before = decode(tokens["before"])
    was, now = (_decode_behind(before, tokens["before"], tokens[name], decode) for name in ("was", "now"))
    return {
        "at_token": tokens["at_token"],
        "before": _escape(before)[-_MAX_CHARACTERS:],
        "was": _escape(was)[:_MAX_CHARACTERS],
        "now": _escape(now)[:_MAX_CHARACTERS],
    }


def _decode_behind(before: str, tokens_before: Sequence[int], tokens: Sequence[int], decode: Decode) -> str:
    """Decode tokens with those before them: by themselves some would lose the space at their beginning."""
    whole = decode([*tokens_before, *tokens])
    # A character may be of tokens on both sides.
    return whole.removeprefix(before) if whole.startswith(before) else decode(tokens)


def _escape(text: str) -> str:
    """Escape what a terminal or a page would follow or hide, as Python's strings do."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
