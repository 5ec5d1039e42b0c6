"""Tells what holds in any case: where prompt tokens came from, why others were missed, what turns waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Values = Mapping[str, Any]

_REASONS = {
    "new": "never seen before",
    "changed": "in place of what had changed",
    "evicted": "evicted in the meantime",
    "behind a gap": "cached behind a gap, and not reused",
    "at another engine": "cached at the engine that their job had left",
    "not read": "cached, and not to be read",
}
_PLACES = {
    "gpu": "were hit on the GPU",
    "host": "were fetched from the CPU cache",
    "disk": "from disk",
    "elsewhere": "from elsewhere",
}
# How blocks of two caches were lost.
LOSSES = {
    "never chosen": "were lost by the GPU before they were chosen for a copy",
    "not worth a copy": "were not worth a copy, as few like them were ever fetched",
    "overwritten": "were lost by the GPU before their copy was made",
    "no room": "found no room in the CPU cache, whose blocks were all being copied to",
    "evicted": "had been in the CPU cache, and were evicted there",
    "not fetched": "were in the CPU cache, and not fetched",
}

# A shorter wait, in the mean, is not worth a line.
_LEAST_WAIT_S = 0.05

_WAITS = {
    "batch full": "for a seat, tokens of a step or free blocks, as in stock vLLM",
    "pins": "for blocks that are kept for jobs whose tools run",
    "new job": "as new jobs, which leave room for those further on",
    "load": "as their contexts were evicted, and jobs want more KV than the caches hold",
    "fetch": "for KV on its way from another cache",
    "fill": "for gaps in front of cached blocks to be computed",
    "grammar": "for their grammar to be compiled",
    "limit": "for other jobs of their tenants, which have as many under way as they may",
}


def add_up(runtimes: Sequence[Values], name: str) -> Counter[str]:
    """Add up what engines count by name."""
    total: Counter[str] = Counter()
    for each in runtimes:
        total.update(each.get(name) or {})
    return total


def tell_tokens(prompt: int, hit: int, missed: Counter[str]) -> Iterator[str]:
    """Tell which share was hit, and why the rest was not."""
    yield f"{prompt:,} prompt tokens, of which {share(hit, prompt)} came from the cache."
    for reason, tokens in missed.most_common():
        yield f"  {share(tokens, prompt):>7} {_REASONS.get(reason, reason)}"


def tell_places(prompt: int, runtimes: Sequence[Values]) -> Iterator[str]:
    """Tell nothing where there is one cache alone."""
    hits, losses = add_up(runtimes, "hits"), add_up(runtimes, "evicted_from")
    if hits:
        *before, last = [f"{share(hits[place], prompt)} {how}" for place, how in _PLACES.items() if place in hits]
        yield f"{', '.join(before)}, and {last}."
    if losses:
        yield "Of the evicted:"
    for cause, tokens in losses.most_common():
        yield f"  {share(tokens, losses.total()):>7} {LOSSES.get(cause, cause)}"


def share(part: int, whole: int) -> str:
    """Write a share in percent."""
    return f"{100 * part / whole:.1f} %"


def tell_waits(requests: int, runtimes: Sequence[Values]) -> Iterator[str]:
    """Tell the mean wait of so many requests and what it was for, where that is worth a line."""
    seconds: Counter[str] = Counter()
    for each in runtimes:
        for reason, waited in (each.get("waits") or {}).items():
            seconds[reason] += waited["total"]
    if not requests or seconds.total() < _LEAST_WAIT_S * requests:
        return
    yield f"Requests waited {seconds.total() / requests:.1f} s in the mean until they ran:"
    for reason, total_s in seconds.most_common():
        yield f"  {total_s / requests:>5.1f} s {_WAITS.get(reason, reason)}"
