"""Seconds of one engine step, by roofline: what an analytic preset and a measured profile have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Row(NamedTuple):
    """One request's part in a step: `query` tokens computed after `context` tokens that are in the cache already."""

    query: int
    context: int

    @property
    def pairs(self) -> float:
        """Pairs of a query and a key that it attends to."""
        return self.query * self.context + self.query * (self.query + 1) / 2

    @property
    def keys(self) -> int:
        """Keys read, the new ones among them."""
        return self.context + self.query

    def within(self, window: int) -> tuple[float, int]:
        """Count pairs and keys read where a query attends to `window` tokens at most, itself among them.

        tokens:  context … | seeing all before them | seeing a window |
        """
        seeing_all = min(max(window - self.context, 0), self.query)
        pairs = Row(seeing_all, self.context).pairs + (self.query - seeing_all) * window
        return pairs, min(self.context, window - 1) + self.query


@dataclass(frozen=True, slots=True)
class WindowCost:
    """Attention of the layers that look `window` tokens back: seconds a pair, and a key read."""

    window: int
    pair_s: float
    kv_read_s: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """The layers, and each row's attention, wait for compute or for memory.

    Per step: `overhead_s`, `weights_read_s`, and `prefill_overhead_s` when any row computes more than one token: then
    it is no single CUDA graph as a step of decodes is, and what prepares it often finds the engine idle. Per token
    computed: `token_s`, and `token_link_s` between GPUs. Per row: `head_s` for the logits of its last token, and
    `state_s` to read and write what recurrent layers keep. Per pair of query and key: `pair_s`. Per key read:
    `kv_read_s`. `windows`: layers that do not look all the way back.
    `overlap`: None when compute hides behind memory, or memory behind compute, entirely: the longer of both counts.
    Else both count as (compute^overlap + memory^overlap)^(1/overlap); with 1, one waits for the other.
    """

    overhead_s: float
    weights_read_s: float
    token_s: float
    token_link_s: float
    head_s: float
    pair_s: float
    kv_read_s: float
    overlap: float | None = None
    prefill_overhead_s: float = 0.0
    windows: tuple[WindowCost, ...] = ()
    state_s: float = 0.0

    def step_s(self, rows: Sequence[Row]) -> float:
        """Predict a step of any mix of prefill chunks and decodes; 0 without rows."""
        if not rows:
            return 0.0
        tokens = sum(row.query for row in rows)
        weights_s = self._join(self.weights_read_s, tokens * self.token_s + len(rows) * self.head_s)
        # Every row computes a token at least.
        overhead_s = self.overhead_s + (self.prefill_overhead_s if tokens > len(rows) else 0.0)
        states_s = len(rows) * self.state_s
        return overhead_s + weights_s + tokens * self.token_link_s + states_s + sum(map(self._attention_s, rows))

    def prefill_s(self, query: int, context: int = 0) -> float:
        """Predict one request's prefill in one step."""
        return self.step_s([Row(query, context)])

    def decode_s(self, contexts: Sequence[int]) -> float:
        """Predict one token for each request, by the number of tokens that each has in the cache."""
        return self.step_s([Row(1, context) for context in contexts])

    def _attention_s(self, row: Row) -> float:
        seconds = self._join(row.pairs * self.pair_s, row.keys * self.kv_read_s)
        for layers in self.windows:
            pairs, keys = row.within(layers.window)
            seconds += self._join(pairs * layers.pair_s, keys * layers.kv_read_s)
        return seconds

    def _join(self, one_s: float, other_s: float) -> float:
        longer, shorter = (one_s, other_s) if one_s > other_s else (other_s, one_s)
        if self.overlap is None or not shorter:
            return longer
        # The longer one is taken out, so that no power of a small number is lost.
        return float(longer * (1 + (shorter / longer) ** self.overlap) ** (1 / self.overlap))
