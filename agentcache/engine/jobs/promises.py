"""Remembers what clients have promised of their requests, and which of them keep their promises."""

from __future__ import annotations

from collections import deque

from cachetools import LRUCache

from agentcache.engine.marks import Expected
from tool_runtime.learning.ttl import Hold

# Of one client the latest promises count.
_LATEST = 8
_MAX_CLIENTS, _MAX_TURNS = 10_000, 10_000
# A reply may be so many times as long, and a return take so many times as long, as was promised.
_FACTOR = 2.0


class Promises:
    """A client is a tenant or, of requests without a cache salt, a session; it may break half of what counts."""

    def __init__(self) -> None:
        self.given: LRUCache[str, tuple[str, float]] = LRUCache(_MAX_TURNS)
        """By the finished request, the client and the seconds within which it was to be back; 0 for never."""
        self._broken: LRUCache[str, deque[bool]] = LRUCache(_MAX_CLIENTS)

    def believes(self, client: str) -> bool:
        """Tell whether the client has broken at most half as many promises as count."""
        return 2 * sum(self._broken.get(client, ())) <= _LATEST

    def finished(self, client: str, turn: str, expected: Expected, output_tokens: int) -> None:
        """Note what was promised of a reply, which is whole, and of the request behind it."""
        keep_s, returns = expected.kv_retention_ttl_seconds, expected.expected_resume is not False
        if expected.expected_output_length is not None:
            self._judge(client, is_broken=output_tokens > _FACTOR * expected.expected_output_length)
        if keep_s is not None or not returns:
            self.given[turn] = client, keep_s or 0.0 if returns else 0.0

    def returned(self, turn: str, seconds: float) -> None:
        """Note that the job has gone on from the turn after so many seconds."""
        if (given := self.given.pop(turn, None)) is not None:
            client, keep_s = given
            self._judge(client, is_broken=seconds > _FACTOR * keep_s)

    def lengthen(self, turn: str, hold: Hold, age_s: float, loss_s: float) -> Hold:
        """Lengthen what was decided of a turn, so many seconds after its end, to what was promised; broken by then."""
        client, keep_s = self.given[turn]
        if age_s >= keep_s:
            del self.given[turn]
            self._judge(client, is_broken=True)
            return hold
        return Hold(max(hold.ttl_s, keep_s - age_s), max(hold.value_s, loss_s)) if self.believes(client) else hold

    def _judge(self, client: str, *, is_broken: bool) -> None:
        if client not in self._broken:
            self._broken[client] = deque(maxlen=_LATEST)
        self._broken[client].append(is_broken)
