"""Reads what a server's turns waited for until they ran: seconds a turn, by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# A shorter wait, in the mean, is not worth a line.
_LEAST_S = 0.05

_REASONS = {
    "batch full": "for a seat, tokens of a step or free blocks, as in stock vLLM",
    "pins": "for blocks that are kept for jobs whose tools run",
    "new job": "as new jobs, which leave room for those further on",
    "load": "as their contexts were evicted, and jobs want more KV than the caches hold",
    "fetch": "for KV on its way from another cache",
    "fill": "for gaps in front of cached blocks to be computed",
    "grammar": "for their grammar to be compiled",
}


def tell_waits(requests: int, runtimes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Tell the mean wait of so many requests and what it was for, where that is worth a line."""
    seconds: Counter[str] = Counter()
    for each in runtimes:
        for reason, waited in (each.get("waits") or {}).items():
            seconds[reason] += waited["total"]
    if not requests or seconds.total() < _LEAST_S * requests:
        return
    yield f"Requests waited {seconds.total() / requests:.1f} s in the mean until they ran:"
    for reason, total_s in seconds.most_common():
        yield f"  {total_s / requests:>5.1f} s {_REASONS.get(reason, reason)}"
