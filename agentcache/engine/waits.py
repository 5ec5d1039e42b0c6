"""Counts why a turn waited: every second from its arrival until it runs is for one reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

WaitReason = Literal["batch full", "pins", "new job", "load", "fetch", "fill", "grammar"]
"""What holds a request in the queue.

- `batch full`: nothing but a lack of seats, tokens of the step or free blocks, as in stock vLLM;
- `pins`: it would take blocks that are pinned for jobs whose tools run;
- `new job`: its job is among those with the fewest turns, and leaves room for the others;
- `load`: its context was evicted while jobs want more KV than the caches hold;
- `fetch`: its blocks are on their way from another cache;
- `fill`: gaps in front of its cached blocks are being computed;
- `grammar`: its grammar is being compiled.
"""
WAIT_REASONS: tuple[WaitReason, ...] = get_args(WaitReason)
# Shorter than a step.
_LEAST_S = 0.001


@dataclass(slots=True)
class Waits:
    """Seconds by reason of a request that waits since `since_s`. Until another reason is noted, time counts for one."""

    since_s: float
    reason: WaitReason = "batch full"
    _seconds: dict[WaitReason, float] = field(default_factory=dict)

    def note(self, reason: WaitReason, now_s: float) -> None:
        """Note what holds the request from now on."""
        self._seconds[self.reason] = self._seconds.get(self.reason, 0.0) + now_s - self.since_s
        self.reason, self.since_s = reason, now_s

    def end(self, now_s: float) -> dict[WaitReason, float]:
        """Return the seconds by reason of a request that waits no more, without those that lasted less than a step."""
        self.note(self.reason, now_s)
        return {reason: round(seconds, 6) for reason, seconds in self._seconds.items() if seconds >= _LEAST_S}
