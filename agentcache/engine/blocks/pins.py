"""Soft pins: the KV of a finished turn is the last to be taken, for a time and within a budget."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from agentcache._evictor import PinnedEvictor
from agentcache.engine.vllm.types import KVCacheBlock
from agentcache.errors import IntegrityError
from agentcache.policy.runtime_policy import PinRank
from tool_runtime.learning.job_table import MAX_EXPIRED, MAX_PENDING
from tool_runtime.learning.ttl import Hold

# Which one gives way may be told by a time, the latest first.
LATEST_S = 1e9
# So many entries of blocks that wait for their pins, 2 MB: with more, no pin begins until others have ended. Jobs that
# share a context have one entry each, and one for each place where they part.
_MAX_RESERVATIONS = 2**18

# How long to hold, by the pin's age in seconds and the blocks that would be lost without it.
Decide = Callable[[float, int], Hold]


class PinEnd(Enum):
    """Why a pin ended."""

    RETURNED = "returned"
    EXPIRED = "expired"
    BUDGET = "budget"
    PRESSURE = "pressure"
    RESET = "reset"
    JOB_OVER = "job over"
    RELEASED = "released"


@dataclass(slots=True, eq=False)
class Pin:
    """`owner` is the finished request whose `blocks` are kept; what others use of them is the pin's again when freed.

    `awaited`: the job is back, so the pin does not expire before the job's request is admitted. Ended pins are kept to
    be shown, so a pin refers to nothing that is larger than itself.
    """

    number: int
    owner: str
    job: str
    tenant: str
    turn: int
    began_s: float
    expires_s: float
    value_s: float
    rank: Callable[[Pin], float]
    blocks: int
    awaited: bool = False
    ended_s: float | None = None
    end: PinEnd | None = None

    @property
    def rank_value(self) -> float:
        """The value of one block: pins that have less lose theirs first."""
        return self.rank(self)


def pin_rank(name: PinRank, job_arrival_s: float) -> Callable[[Pin], float]:
    """Return how the pins of a job that came then stand among others."""
    match name:
        case "job arrival":
            value = max(0.0, LATEST_S - job_arrival_s)
            return lambda _: value
        case "deadline":
            return lambda pin: max(0.0, LATEST_S - pin.expires_s)


class Pins:
    """All live pins. Each ends with a cause, once; what is left of it then goes back to the evictor's order.

    Blocks kept for waiting requests (`guard`) are no pins: they end with the wait, and have no budget.
    """

    def __init__(
        self, evictor: PinnedEvictor, *, budget_blocks: int, clock: Callable[[], float], whole: bool = False
    ) -> None:
        """Begin without pins. With `whole` a part of what a pin keeps is worth nothing: it ends at once."""
        self.budget_blocks = budget_blocks
        self.began = 0
        self.ended: Counter[str] = Counter()
        self.held_s = 0.0
        self._evictor = evictor
        self._clock = clock
        self._whole = whole
        self._numbers = itertools.count()
        self._live: dict[int, Pin] = {}
        self._by_owner: dict[str, Pin] = {}
        self._by_job: dict[str, dict[int, Pin]] = {}
        # Of live pins: by a pin's age, and how many blocks it keeps from others then, how long it is to go on.
        self._decide: dict[int, Decide] = {}
        self._guards: dict[str, int] = {}
        self._deadlines: list[tuple[float, int]] = []
        # The pins were within their budget when they had so many blocks.
        self._checked_blocks = 0

    def __len__(self) -> int:
        """Return the number of live pins."""
        return len(self._live)

    @property
    def blocks(self) -> int:
        """The number of blocks that are pinned and free now."""
        return self._evictor.pinned - self._evictor.adopted

    def blocks_left(self, pin: Pin) -> int:
        """Return how many blocks the pin still has; 0 once it has ended."""
        return self._evictor.size_of(pin.number) if pin.end is None else 0

    def __iter__(self) -> Iterator[Pin]:
        """Iterate over the live pins; they may end meanwhile."""
        return iter(list(self._live.values()))

    def begin(
        self,
        owner: str,
        *,
        job: str,
        tenant: str,
        turn: int,
        blocks: Sequence[KVCacheBlock],
        decide: Decide,
        rank: Callable[[Pin], float],
    ) -> Pin | None:
        """Pin the blocks that a finished request is about to free, with the pin in its `FreeContext`.

        Those that others use as well are the pin's from when they are freed. The budget is enforced by the next `step`.
        Of one job the latest 16 pins live.

        Args:
            owner: The request.
            job: Whose request it was.
            tenant: Whose share of the cache the pin counts towards, empty for none's.
            turn: The request's number within its job.
            blocks: All of the request's blocks, still in use.
            decide: How long to keep them, now and whenever that time is over.
            rank: What one of the blocks is worth, compared across pins.

        Returns:
            None if `decide` says not to keep them, or there is nothing to keep, no budget or no room for its record.
        """
        hold = decide(0.0, [block.ref_cnt for block in blocks].count(1))
        block_ids = [block.block_id for block in blocks if block._block_hash]
        is_worthless = hold.ttl_s <= 0 or not self.budget_blocks or not block_ids
        if is_worthless or self._evictor.reservations >= _MAX_RESERVATIONS:
            return None
        now_s, number = self._clock(), next(self._numbers)
        pin = Pin(number, owner, job, tenant, turn, now_s, now_s + hold.ttl_s, hold.value_s, rank, len(block_ids))
        self._evictor.reserve(number, block_ids)
        self.began += 1
        of_job = self._by_job.setdefault(job, {})
        self._live[number] = self._by_owner[owner] = of_job[number] = pin
        if len(of_job) > MAX_PENDING:
            # The job table no longer knows that this turn waits, so no request is taken to go on from it.
            self._end(next(iter(of_job.values())), PinEnd.BUDGET)
        self._decide[number] = decide
        self._schedule(pin)
        return pin

    def is_live(self, number: int) -> bool:
        """Tell whether the pin with this number is live."""
        return number in self._live

    def await_return(self, owner: str) -> bool:
        """Note that the job is back, and its request waits. Return False if the turn has no live pin."""
        pin = self._by_owner.get(owner)
        if pin is not None:
            pin.awaited = True
        return pin is not None

    def guard(self, request_id: str, block_ids: Iterable[int], rank_value: float) -> None:
        """Keep free blocks for a waiting request that will hit them."""
        number = next(self._numbers)
        if self._evictor.adopt(number, list(block_ids), self._clock()):
            self._evictor.set_value(number, rank_value)
            self._guards[request_id] = number

    def drop_guard(self, request_id: str) -> None:
        """Drop what is kept for a request that was admitted, or is over."""
        if (number := self._guards.pop(request_id, None)) is not None:
            self._evictor.release(number, self._clock())

    def end(self, owner: str, cause: PinEnd) -> None:
        """End the turn's pin; do nothing if it has none that is live."""
        if (pin := self._by_owner.get(owner)) is not None:
            self._end(pin, cause)

    def end_all(self, cause: PinEnd, job: str | None = None) -> None:
        """End all pins, of one job or of all."""
        for pin in list((self._live if job is None else self._by_job.get(job, {})).values()):
            self._end(pin, cause)

    def step(self) -> None:
        """End the pins whose time is over, up to 32, or that have lost all blocks. O(pins that end, log pins)."""
        for number in self._evictor.take_losses():
            pin = self._live.get(number)
            # What others use of it is not lost, but alone no reason to let its job pass.
            if pin is not None and not self._evictor.size_of(number):
                self._end(pin, PinEnd.PRESSURE)
        # What others used comes back in between.
        if self.blocks > self._checked_blocks:
            self._shrink(list(self._live.values()), self.budget_blocks)
        self._checked_blocks = self.blocks
        now_s, decided = self._clock(), 0
        while decided < MAX_EXPIRED and self._deadlines and self._deadlines[0][0] <= now_s:
            pin = self._live.get(heapq.heappop(self._deadlines)[1])
            if pin is None or pin.awaited:
                continue
            decided += 1
            hold = self._decide[pin.number](now_s - pin.began_s, self.blocks_left(pin))
            expires_s = now_s + hold.ttl_s
            # Not `hold.ttl_s > 0`: what is too short to be added would be decided upon for ever.
            if expires_s > now_s:
                pin.expires_s, pin.value_s = expires_s, hold.value_s
                self._schedule(pin)
            else:
                self._end(pin, PinEnd.EXPIRED)

    def reset(self) -> None:
        """Forget all pins: the prefix cache was reset, and no block holds anything any more."""
        self.end_all(PinEnd.RESET)
        for request_id in list(self._guards):
            self.drop_guard(request_id)
        self._evictor.take_losses()

    def check_integrity(self) -> None:
        """Raise IntegrityError when pins, budget and the evictor's blocks disagree."""
        pinned = sum(map(self.blocks_left, self._live.values()))
        guarded = sum(map(self._evictor.size_of, self._guards.values()))
        if (pinned, guarded) != (self.blocks, self._evictor.adopted):
            raise IntegrityError(
                f"{self.blocks} + {self._evictor.adopted} blocks are pinned, {pinned} + {guarded} have a reason"
            )
        if sorted(self._by_owner.values(), key=id) != sorted(self._live.values(), key=id):
            raise IntegrityError("live pins are filed under other owners")
        if sorted(pin.number for of_job in self._by_job.values() for pin in of_job.values()) != sorted(self._live):
            raise IntegrityError("live pins are filed under other jobs")
        if any(pin.end is not None for pin in self._live.values()):
            raise IntegrityError("a pin that has ended is among the live ones")
        if self.began != len(self._live) + self.ended.total():
            raise IntegrityError(f"{self.began} pins began, {len(self._live)} live and {self.ended.total()} ended")

    def rank_anew(self) -> None:
        """Take over what all pins are worth now, of those whose rank has changed."""
        for pin in self._live.values():
            self._evictor.set_value(pin.number, pin.rank_value)

    def _schedule(self, pin: Pin) -> None:
        heapq.heappush(self._deadlines, (pin.expires_s, pin.number))
        self._evictor.set_value(pin.number, pin.rank_value)

    def _shrink(self, pins: list[Pin], budget_blocks: int) -> None:
        """Shrink pins to the budget: what is worth least gives way, the cheapest of its blocks first."""
        excess = sum(map(self.blocks_left, pins)) - budget_blocks
        if excess <= 0:
            return
        for pin in sorted(pins, key=lambda pin: pin.rank_value):
            left = self.blocks_left(pin)
            if not left:
                # Others use its blocks, or they are yet to be freed: its end would make no room.
                continue
            if left <= excess or self._whole:
                self._end(pin, PinEnd.BUDGET)
            else:
                self._evictor.release_some(pin.number, excess, self._clock())
            excess -= left
            if excess <= 0:
                return

    def _end(self, pin: Pin, cause: PinEnd) -> None:
        now_s = self._clock()
        self._evictor.release(pin.number, now_s)
        pin.end, pin.ended_s = cause, now_s
        self.ended[cause.value] += 1
        self.held_s += max(0.0, now_s - pin.began_s)
        of_job = self._by_job[pin.job]
        del self._live[pin.number], self._by_owner[pin.owner], self._decide[pin.number], of_job[pin.number]
        if not of_job:
            del self._by_job[pin.job]
