"""Prices blocks that are evicted: computing them again, or fetching those that the CPU cache keeps, if worth a copy.

`Demand` tells whether jobs want more than both caches hold, and for which there is room.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tool_runtime.learning.runtime import AHEAD_TURNS, AgentRuntime

# After so many blocks all that was seen counts for half.
_WINDOW = 20_000
# So does what was seen of classes, of which one that was given up is tried again.
_CLASS_WINDOW = 50_000
# Looks at what jobs take, one a turn, over which it is averaged.
_LOOKS = 512
# What is assumed of a class before any of its copies was fetched or lost.
_PRIOR_LOST, _PRIOR_FETCHED = 200, 200


@dataclass(frozen=True, slots=True)
class RecomputeCost:
    """Seconds of prefill that losing one block adds, linear in its position and never below `floor_s`."""

    slope_s: float
    base_s: float
    floor_s: float

    def at(self, position: float) -> float:
        """Return the cost of the block that ends `position` tokens into its sequence."""
        return max(self.slope_s * position + self.base_s, self.floor_s)


class ReturnPrice:
    """Fetching or computing again, by the share of what jobs came back for that had to be computed."""

    def __init__(self, compute: RecomputeCost, fetch_s: float, *, size_ratio: float) -> None:
        """Take what computing and fetching a block cost, and the size of the host's cache over that of the GPU.

        Before anything is seen, a host cache of twice the GPU's is taken to lose nothing, and none to keep nothing.
        """
        self._compute = compute
        self._fetch_s = fetch_s
        self.size_ratio = size_ratio
        self._lost = _WINDOW / 2 * max(0.0, 1 - size_ratio / 2)
        self._seen = _WINDOW / 2
        self._learns = True

    @property
    def lost_share(self) -> float:
        """Return the share of evicted blocks that jobs came back for and the CPU cache did not have."""
        return self._lost / self._seen

    def at(self, position: float) -> float:
        """Return the seconds for the block that ends `position` tokens into its sequence."""
        return self.lost_share * self._compute.at(position) + (1 - self.lost_share) * self._fetch_s

    def note_lost(self, blocks: int) -> None:
        """Note evicted blocks that are computed again."""
        self._note_seen(blocks, lost=blocks)

    def note_kept(self, blocks: int) -> None:
        """Note evicted blocks that were fetched."""
        self._note_seen(blocks)

    def settle(self) -> None:
        """Keep the share as it is: lost blocks are noted no more, so kept ones would make it fall to nothing."""
        self._learns = False

    def _note_seen(self, blocks: int, lost: int = 0) -> None:
        if not self._learns:
            return
        self._lost += lost
        self._seen += blocks
        if self._seen >= _WINDOW:
            self._seen /= 2
            self._lost /= 2


BlockPrice = RecomputeCost | ReturnPrice
"""What losing a block costs."""


class Usefulness:
    """Counts how many stored blocks were fetched before they were lost, by finish class (`FreeContext.finish_class`).

    A copy that is still in the CPU cache counts for nothing: its job may be about to come back. Contexts are stored
    by the thousand blocks; counted at once, every class would be given up at its first ones.
    """

    def __init__(self, least_share: float) -> None:
        """Take the share of fetched blocks under which the copies of a class cost more than they save."""
        self.least_share = least_share
        self._lost: Counter[int] = Counter()
        self._fetched: Counter[int] = Counter()
        self._seen = 0

    def is_useful(self, finish_class: int) -> bool:
        """Tell whether blocks of this class are worth a copy."""
        fetched = _PRIOR_FETCHED + self._fetched[finish_class]
        return fetched >= self.least_share * (fetched + _PRIOR_LOST + self._lost[finish_class])

    def note_avoided(self, blocks: int) -> None:
        """Note blocks that were not copied: time goes on."""
        self._seen += blocks
        if self._seen >= _CLASS_WINDOW:
            self._seen = 0
            for counts in (self._lost, self._fetched):
                for finish_class in counts:
                    counts[finish_class] //= 2

    def note_lost(self, finish_classes: Iterable[int]) -> None:
        """Note the classes of blocks that the CPU cache alone had, and evicted."""
        self._note(self._lost, finish_classes)

    def note_fetched(self, finish_classes: Iterable[int]) -> None:
        """Note the classes of blocks that were fetched."""
        self._note(self._fetched, finish_classes)

    def _note(self, counts: Counter[int], finish_classes: Iterable[int]) -> None:
        before = counts.total()
        counts.update(finish_classes)
        self.note_avoided(counts.total() - before)


@dataclass(frozen=True, slots=True)
class TurnCost:
    """Seconds of prefill. `price` is that of a block of `block_size` tokens; the cache has `num_blocks`."""

    price: BlockPrice
    block_size: int
    num_blocks: int

    def of_end(self, tokens: int, blocks: float) -> float:
        """Return what the last blocks of so many tokens cost: what other requests share with them is the beginning."""
        return blocks * self.price.at(tokens - blocks * self.block_size / 2)

    def of_whole(self, tokens: int) -> float:
        """Return what all full blocks of so many tokens cost."""
        return self.of_end(tokens, tokens // self.block_size)

    def of_lost(self, shared_tokens: int, lost_tokens: int) -> float:
        """Return the cost of what the turn before had left and is gone: the end of what is shared with it."""
        return self.of_end(shared_tokens, lost_tokens / self.block_size)

    def of_rest(self, tokens: int, kept_tokens: int) -> float:
        """Return what a prompt costs of which the first `kept_tokens` are cached."""
        return self.of_end(tokens, (tokens - kept_tokens) / self.block_size)

    def of_hold(self, tokens: int, at_stake: int) -> dict[str, float]:
        """Return what it costs to lose these blocks at the end of so many tokens, what all cost, and their share."""
        # Windows and states are beside the blocks that keep all tokens.
        loss_s = self.of_end(tokens, min(at_stake, tokens // self.block_size))
        return {"loss_s": loss_s, "prefill_s": self.of_whole(tokens), "share": self.share(at_stake)}

    def share(self, blocks: int) -> float:
        """Return the share of the cache that so many blocks are."""
        return blocks / self.num_blocks


class SizedRequest(Protocol):
    """A request, as far as its price goes: its tokens, and the most of its reply."""

    @property
    def num_tokens(self) -> int: ...  # noqa: D102
    @property
    def max_tokens(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Prices requests in seconds: the prefill as `prefill` says, each token of the reply by `step_s`."""

    prefill: TurnCost
    step_s: float

    def find(self, request: SizedRequest, kept_tokens: int, expected_tokens: int | None = None) -> float:
        """Return the most that the request takes, served alone, of which so many tokens are cached.

        Its reply has as many tokens as it may have, or as are expected.
        """
        reply = request.max_tokens if expected_tokens is None else min(request.max_tokens, expected_tokens)
        return self.of_turn(kept_tokens, request.num_tokens - kept_tokens, reply)

    def of_turn(self, cached_tokens: int, computed_tokens: int, output_tokens: int) -> float:
        """Return what a turn took, had it been served alone, which computed so many tokens behind cached ones."""
        prefill_s = self.prefill.of_rest(cached_tokens + computed_tokens, cached_tokens)
        return prefill_s + output_tokens * self.step_s


class Room(NamedTuple):
    """There is room for jobs up to the one of this number, in the order of their arrival.

    Each counts for `job_tokens`: what jobs took of late, in the mean, or now want, if that is more.
    """

    latest_job: float
    job_tokens: float


class Demand:
    """What the jobs under way want of the caches: each its latest prompt, and what one more turn adds to that."""

    def __init__(self, runtime: AgentRuntime, block_tokens: int, room: float) -> None:
        """`runtime` counts blocks of so many tokens; the caches together hold `room`."""
        self._jobs = runtime.jobs.turn_counts
        self._blocks = self._jobs.blocks
        self._growth = runtime.context_growth
        self._rounds = runtime.rounds
        self._block_tokens = block_tokens
        self._room = room
        # What the prompts of a job take, in the mean of the latest looks.
        self._blocks_of_job = 0.0
        self._looks = 0

    def note_jobs(self) -> None:
        """Look what jobs take now: another turn runs."""
        if jobs := len(self._blocks.jobs):
            self._looks = min(self._looks + 1, _LOOKS)
            self._blocks_of_job += (len(self._blocks) / jobs - self._blocks_of_job) / self._looks

    def exceeds_room(self) -> bool:
        """Tell whether jobs want more than the caches hold."""
        return self._find_wanted() > self._room

    def find_room(self) -> Room:
        """Find for which jobs the caches have room. Jobs take little at first, so none counts for less than others."""
        size = self._find_size()
        return Room(self._jobs.find_latest(int(self._room / size)), size) if size else Room(math.inf, 0.0)

    def find_refills(self, find_seconds: Callable[[int, int], float]) -> float:
        """Find how often all that the caches hold can be computed in a round (`Rounds`), by `find_seconds`."""
        size = math.ceil(self._find_size())
        return self._rounds.mean_s * size / (self._room * find_seconds(size, 0)) if size else 0.0

    def _find_size(self) -> float:
        jobs = len(self._blocks.jobs)
        return max(self._blocks_of_job * self._block_tokens, self._find_wanted() / jobs) if jobs else 0.0

    def _find_wanted(self) -> float:
        return len(self._blocks) * self._block_tokens * (1 + self._growth.ratio / AHEAD_TURNS)
