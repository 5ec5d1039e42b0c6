"""Latency and bandwidth of each direction, and what both keep of it at once, by least squares over relative errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from agentcache.errors import InputError
from agentcache.policy.link_profile import LinkSpeed, LinkSpeeds
from agentcache.policy.step_fit import solve_non_negative
from agentcache.profile.link_rows import LinkRow


@dataclass(frozen=True, slots=True)
class FittedLink:
    """The speeds with the rows that they are fitted to."""

    speeds: LinkSpeeds
    rows: Sequence[LinkRow]


def fit_link(rows: Sequence[LinkRow]) -> FittedLink:
    """Fit the speeds. Raises InputError for rows that no link explains."""
    fetch, store = _fit("fetch", rows, lambda row: row.fetch_s), _fit("store", rows, lambda row: row.store_s)
    both = _fit("both ways", rows, lambda row: row.both_s)
    return FittedLink(LinkSpeeds(fetch=fetch, store=store, both_share=_find_share(fetch, store, both)), rows)


def predict_s(speed: LinkSpeed, row: LinkRow) -> float:
    """Return the seconds that a direction takes for the row's blocks by itself."""
    return speed.latency_s + row.all_bytes / (speed.gb_s * 1e9)


def _fit(name: str, rows: Sequence[LinkRow], seconds: Callable[[LinkRow], float]) -> LinkSpeed:
    sizes = np.array([row.all_bytes for row in rows], dtype=np.float64)
    if len(set(sizes)) < 2:
        raise InputError(f"{name}: copies of {len(set(sizes))} sizes do not tell latency and bandwidth apart")
    times = np.array([seconds(row) for row in rows])
    terms = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    latency_s, byte_s = solve_non_negative(terms)
    if not byte_s > 0:
        raise InputError(f"{name}: copies of more blocks take no longer, so that there is no bandwidth to be told")
    return LinkSpeed(latency_s=float(latency_s), gb_s=1 / float(byte_s) / 1e9)


def _find_share(fetch: LinkSpeed, store: LinkSpeed, both: LinkSpeed) -> float:
    """Find the share at which the slower direction ends when `both` says: once the other has, it is fast again."""
    slow, fast = sorted(speed.gb_s for speed in (fetch, store))
    # Of a gigabyte each way: what the slower one takes, less what it takes alone after the faster one's end.
    shared_s = 1 / both.gb_s - (1 / slow - 1 / fast)
    return min(1.0, 1 / fast / shared_s) if shared_s > 0 else 1.0
