"""Learns the gaps behind turns: in records per command, per tool and over all tools, and one of humans."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from threading import Lock

import numpy as np

from tool_runtime.learning.tool_key import HUMAN, ToolKey
from tool_runtime.learning.ttl import Floats, GapHistory, GapRecord, SurvivalCurve, log_logistic, shrunk_curve

# The record over all tools; no model can call a tool of this name, for it is longer than a tool's name may be.
POOL = ToolKey("*" * 65)

# As a start, the medians of all 333 recorded Claude Code sessions, with some of which docs/results.md measures: 9 s
# after a tool call, 152 s after a final answer.
_TOOL_PRIOR = log_logistic(9.0)
_HUMAN_PRIOR = log_logistic(152.0)
# A return cannot be faster, and a curve falls at times above 0.
_SHORTEST_S = 0.001
# So many histories are kept until something is learned: about 2 MB.
_MAX_HISTORIES = 64
# What is learned stays finite, also from a file that somebody has written: 32 years a gap.
_LONGEST_S = 1e9


class Ended(Enum):
    """The end of a gap, which says what may be learned from it."""

    RETURNED = "returned"
    STILL_OUT = "still out"  # no longer waited for; it would have lasted at least so long
    BROKEN = "broken"  # abort, error or cut-off: nothing may be learned


@dataclass(frozen=True, slots=True)
class RecordState:
    """A record as plain values. `samples` are (seconds, age of the sample in seconds, whether it returned)."""

    key: ToolKey
    count: int
    total_s: float
    samples: tuple[tuple[float, float, bool], ...]


class Durations:
    """Gaps by key: the `max_keys` keys used last, of each the latest `max_samples`, of the pool `max_pool_samples`.

    A sample's weight halves every `half_life_s` seconds, up to the latest observation. A record is shrunk to the more
    general one as if that were worth `strength` samples. Human gaps share nothing with those of tools; tools that ask
    the human are known by name, and begin as humans do.

    The defaults are assumed, none is tuned; the three counts bound the memory, once more for what others know. Only
    `copy` and `share` may be called by another thread than the rest.
    """

    def __init__(
        self,
        *,
        max_keys: int = 2000,
        max_samples: int = 128,
        max_pool_samples: int = 512,
        half_life_s: float = 6 * 3600.0,
        strength: float = 8.0,
    ) -> None:
        for name, value in (
            ("max_keys", max_keys),
            ("max_samples", max_samples),
            ("max_pool_samples", max_pool_samples),
            ("half_life_s", half_life_s),
            ("strength", strength),
        ):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} {value}: must be positive and finite")
        self._max_keys = max_keys
        self._max_samples = max_samples
        self._half_life_s = half_life_s
        self._strength = strength
        self.observed = 0
        """Gaps that were learned from, without those of `restore`."""
        self._as_of_s = -math.inf
        # Held while the records change, and while they are copied.
        self._changing = Lock()
        self._pool = GapRecord(max_pool_samples)
        self._human = GapRecord(max_pool_samples)
        self._records: OrderedDict[ToolKey, GapRecord] = OrderedDict()
        # What others know; `share` replaces it as a whole.
        self._others: Mapping[ToolKey, GapRecord] = {}
        # What follows from all of these. A new dict follows each change: what was being made meanwhile goes to
        # the old one.
        self._histories: dict[ToolKey, GapHistory] = {}

    def __len__(self) -> int:
        """Return how many keys have a record, the pool and humans not counted."""
        return len(self._records)

    def observe(self, key: ToolKey, seconds: float, ended: Ended, now_s: float) -> None:
        """Learn from a gap of `key` that ended at `now_s` after `seconds`, on a clock that does not go back.

        Raises ValueError for a gap that is negative or not finite.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"a gap of {seconds} s: must be finite and not negative")
        if ended is Ended.BROKEN:
            return
        with self._changing:
            self.observed += 1
            self._as_of_s = max(self._as_of_s, now_s)
            for record in self._touch(key):
                record.add(_bound(seconds), self._as_of_s, ended is Ended.RETURNED)
            self._histories = {}

    def history(self, key: ToolKey) -> GapHistory:
        """Return what to expect of a gap filed under `key`. Costs a sort of the records' samples after each change."""
        histories = self._histories
        if (known := histories.get(key)) is not None:
            return known
        if len(histories) >= _MAX_HISTORIES:
            histories.clear()
        found = histories[key] = self._find_history(key)
        return found

    def share(self, states: Iterable[RecordState], now_s: float) -> None:
        """Count what others know as well, as merged from their dumps, in place of what they told before.

        It is not in `dump`: what comes back from others would be counted again. May be called by another thread.
        """
        told = Durations(max_keys=self._max_keys, max_samples=self._max_samples, max_pool_samples=self._pool.size)
        told.restore(states, now_s)
        records = dict(told._records)
        records |= {key: record for key, record in ((POOL, told._pool), (HUMAN, told._human)) if not record.is_empty}
        with self._changing:
            if records:
                self._as_of_s = max(self._as_of_s, now_s)
            self._others = records
            self._histories = {}

    def copy(self) -> Durations:
        """Copy what is known now: holds up the owner for a twentieth of the time that `dump` takes."""
        with self._changing:
            twin = copy.copy(self)
            twin._changing = Lock()
            twin._histories = {}
            twin._pool, twin._human = self._pool.copy(), self._human.copy()
            twin._records = OrderedDict((key, record.copy()) for key, record in self._records.items())
        return twin

    def dump(self) -> list[RecordState]:
        """Dump everything that `restore` takes, keys used last behind."""
        named = [(POOL, self._pool), (HUMAN, self._human), *self._records.items()]
        return [RecordState(key, *record.state(self._as_of_s)) for key, record in named]

    def restore(self, states: Iterable[RecordState], now_s: float) -> None:
        """Add records that were dumped, as if the dump had been taken at `now_s`."""
        self._as_of_s = max(self._as_of_s, now_s)
        for state in states:
            record = self._record(state.key)
            record.count_returns(state.count, state.total_s)
            for seconds, age_s, returned in state.samples:
                record.keep(_bound(seconds), now_s - age_s, returned)
        self._histories = {}

    def _find_history(self, key: ToolKey) -> GapHistory:
        pool = self._known(POOL)
        general = pool if _find_general(key) == POOL else self._known(HUMAN)
        tool = general if key == HUMAN else self._known(key.coarse)
        assert pool is not None
        assert general is not None
        evidence = float(self._weights(general).sum())
        if key.asks_human and tool:
            evidence += float(self._weights(tool).sum())
        return GapHistory(
            key,
            self._curve(key),
            evidence,
            tool.count if tool else 0,
            tool.total_s / tool.count if tool and tool.count else None,
            tool.returns_s if tool else np.empty(0),
            pool.count,
            pool.returns_s,
        )

    def _touch(self, key: ToolKey) -> list[GapRecord]:
        """Return the records that a gap of this key goes to."""
        if key == HUMAN:
            return [self._human]
        # The tool behind its commands, so that a command is forgotten first.
        own = [self._record(each) for each in dict.fromkeys((key, key.coarse))]
        return own if key.asks_human else [self._pool, *own]

    def _record(self, key: ToolKey) -> GapRecord:
        if key in (POOL, HUMAN):
            return self._pool if key == POOL else self._human
        record = self._records.pop(key, None) or GapRecord(self._max_samples)
        self._records[key] = record
        if len(self._records) > self._max_keys:
            self._records.popitem(last=False)
        return record

    def _known(self, key: ToolKey) -> GapRecord | None:
        """Return all that is known of a key, here and from others."""
        own = {POOL: self._pool, HUMAN: self._human}.get(key) or self._records.get(key)
        told = self._others.get(key)
        return own.join(told) if own is not None and told is not None else own or told

    def _curve(self, key: ToolKey) -> SurvivalCurve:
        general = _find_general(key)
        curve = _HUMAN_PRIOR if general == HUMAN else _TOOL_PRIOR
        keys = (general,) if key == HUMAN else (general, key.coarse, key)
        for each in dict.fromkeys(keys):
            record = self._known(each)
            if record is not None:
                curve = self._shrink(record, curve)
        return curve

    def _shrink(self, record: GapRecord, prior: SurvivalCurve) -> SurvivalCurve:
        return shrunk_curve(record.seconds, record.returned, self._weights(record), prior, self._strength)

    def _weights(self, record: GapRecord) -> Floats:
        return np.asarray(np.exp2(-(self._as_of_s - record.at_s) / self._half_life_s))


def _bound(seconds: float) -> float:
    return min(max(seconds, _SHORTEST_S), _LONGEST_S)


def _find_general(key: ToolKey) -> ToolKey:
    """Find the record that the key's own is shrunk to."""
    return HUMAN if key == HUMAN or key.asks_human else POOL
