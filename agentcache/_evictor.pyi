"""Evictors and the queue of free blocks, in C++ (`csrc/`). `Evictor` is the contract of every eviction policy."""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, final

from agentcache import errors

SHARED_CLASS: int
"""The `finish_class` of blocks that many jobs wait for."""

class IntegrityError(errors.IntegrityError): ...
class NotFreeError(KeyError): ...

class FreeContext:
    """What is known of the request that frees blocks. Immutable."""

    def __init__(
        self,
        *,
        factor: float = 1.0,
        job: int = 0,
        finish_class: int = 0,
        prefix_only: bool = False,
        superseded: bool = False,
        whole: bool = False,
        pin: int | None = None,
    ) -> None: ...
    @property
    def factor(self) -> float:
        """Multiplies the value of the blocks."""
    @property
    def job(self) -> int:
        """Whose request it was: a number of the caller's from 1, 0 unknown."""
    @property
    def finish_class(self) -> int:
        """How it finished: a number of the caller's from 0 to 1023, 0 unknown."""
    @property
    def prefix_only(self) -> bool:
        """A later request can reuse the blocks as a prefix only, so the last of them is the first to lose."""
    @property
    def superseded(self) -> bool:
        """A later state of the same sequence makes the blocks needless: they go first of all that hold KV."""
    @property
    def whole(self) -> bool:
        """The blocks are of use together alone: with the first that is lost, the others are worth nothing."""
    @property
    def pin(self) -> int | None:
        """The pin that keeps the blocks."""
    def of_copy(self, by: float) -> FreeContext:
        """Return the context of blocks that another cache has as well, with `by` times their value."""
    def without_pin(self) -> FreeContext: ...

UNKNOWN_REQUEST: FreeContext
"""The context of blocks of which nothing is known."""

class Evictor:
    """Orders the free blocks of a cache and gives up the ones that are worth least.

    A block is named by its id, an integer from 0. It is *free* from `add` or `add_empty` until `evict` or `remove`;
    only free blocks are known here. Free blocks may still hold KV that a later request reuses (then it is removed).
    Times are seconds on one clock of the caller's. A call that raises changes nothing.

    Calls on one evictor must not overlap, and could: those that scan release the GIL in `evict`, and all in `order`
    and `first`. Only `order`, `first` and `len` may overlap with each other: they change nothing.
    """

    def add(
        self,
        block_ids: Sequence[int],
        positions: Sequence[int],
        now_s: float,
        context: FreeContext = ...,
    ) -> None:
        """Free blocks that hold reusable KV. Where the policy sees no difference, earlier ids go first.

        Args:
            block_ids: Blocks that one request has freed together. None of them is free already.
            positions: For each block the tokens of its sequence up to its end, from which its cost follows.
            now_s: When the blocks were last used, in seconds.
            context: What is known of the request; `UNKNOWN_REQUEST` if it is left out. Its `factor` (> 0) multiplies
                the blocks' value: above 1 where reuse is likelier than their age says.

        Raises:
            ValueError: A block is free already or unknown, or a value is out of range.
        """

    def add_empty(self, block_ids: Sequence[int]) -> None:
        """Free blocks without reusable KV: they go before every other block, the latest call first, in order.

        Args:
            block_ids: Blocks of which none is free already.

        Raises:
            ValueError: A block is free already or unknown.
        """

    def evict(self, count: int, now_s: float) -> list[int]:
        """Take out the `count` blocks to lose.

        Args:
            count: Number of blocks; 0 is safe.
            now_s: The present, in seconds.

        Returns:
            Their ids, in the order in which they are lost.

        Raises:
            ValueError: Fewer are free.
        """

    def remove(self, block_id: int) -> None:
        """Take out one block because its KV is used again.

        Args:
            block_id: Any number.

        Raises:
            KeyError: No block of this id is free.
        """

    def order(self, now_s: float) -> list[int]:
        """List the free blocks without a change to any.

        Args:
            now_s: The present, in seconds.

        Returns:
            Their ids, in the order in which `evict` would take them at `now_s`.
        """

    def first(self, count: int, now_s: float) -> list[int]:
        """List the blocks that go first without a change to any.

        Args:
            count: Number of blocks; 0 is safe.
            now_s: The present, in seconds.

        Returns:
            The first `count` ids of `order`, or all if fewer blocks are free.
        """

    def __len__(self) -> int:
        """Return how many blocks are free."""

    def observe_reuse(self, idle_s: float) -> None:
        """Learn that a request came back to blocks and removed them.

        Args:
            idle_s: For how many seconds the blocks had been free.
        """

    def reprice(self, block_ids: Sequence[int], cost_s: float) -> None:
        """Set what the loss of blocks costs until they are freed anew: their KV can be had back without computing it.

        Args:
            block_ids: Any blocks; those that are not free with KV are ignored.
            cost_s: Seconds, above 0.

        Raises:
            ValueError: The cost is another.
        """

    def forget(self, block_id: int) -> None:
        """Forget what was in a block that is not free here: its KV is lost.

        Args:
            block_id: A block that there is.

        Raises:
            ValueError: The evictor remembers blocks and has no such block.
        """

    def check_integrity(self) -> None:
        """Check the evictor's own records.

        Raises:
            IntegrityError: They contradict each other.
        """

class PythonEvictor(Evictor, metaclass=ABCMeta):
    """The base of evictors written in Python. C++ calls the methods that they define.

    Those that are not abstract do nothing here: most policies do not need them. A subclass calls `super().__init__()`.
    """

    def __init__(self) -> None: ...
    @abstractmethod
    def add(
        self,
        block_ids: Sequence[int],
        positions: Sequence[int],
        now_s: float,
        context: FreeContext = ...,
    ) -> None: ...
    @abstractmethod
    def add_empty(self, block_ids: Sequence[int]) -> None: ...
    @abstractmethod
    def evict(self, count: int, now_s: float) -> list[int]: ...
    @abstractmethod
    def remove(self, block_id: int) -> None: ...
    @abstractmethod
    def order(self, now_s: float) -> list[int]: ...
    @abstractmethod
    def __len__(self) -> int: ...
    @abstractmethod
    def check_integrity(self) -> None: ...

@final
class LruEvictor(Evictor):
    """Least recently used first: the same victims as vLLM's own free list, one by one.

    A linked list, next victim first. Every operation is O(1) per block; any number of blocks.
    """

    def __init__(self) -> None: ...

@final
class AsymCacheEvictor(Evictor):
    """The paper's evictor: least expected recomputation cost first. Two heaps, one for each exponential: O(log n).

    The reuse frequency of a block that has been idle for τ is min(exp(−τ/α), λ·exp(−(τ−τ₀)/β)); the loss of a block
    at position n costs max(floor, slope·n + base) seconds. All times are seconds, λ is 1 at first.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        alpha_s: float,
        beta_s: float,
        tau0_s: float,
        slope_s: float,
        base_s: float,
        floor_s: float,
        controller: Callable[[float], float] | None = None,
    ) -> None:
        """Make an empty evictor. `controller` gives λ after each reuse, of whose seconds it is told."""
    @property
    def lambda_value(self) -> float: ...
    def set_lambda(self, value: float) -> None:
        """Move the turning point of the reuse frequency, from the next eviction on.

        Args:
            value: λ, finite and above 0.

        Raises:
            ValueError: λ is out of range.
        """

@final
class AsymCacheLinearEvictor(Evictor):
    """The same victims as AsymCacheEvictor, by a scan of all blocks for each: what its heaps are compared with."""

    def __init__(
        self,
        *,
        num_blocks: int,
        alpha_s: float,
        beta_s: float,
        tau0_s: float,
        slope_s: float,
        base_s: float,
        floor_s: float,
        controller: Callable[[float], float] | None = None,
    ) -> None: ...
    @property
    def lambda_value(self) -> float: ...
    def set_lambda(self, value: float) -> None: ...

AGE_EDGES_S: tuple[float, ...]
"""The ages in seconds at which the bins of `ReturnWaits` begin, and the last one's end."""

class ReturnWaits:
    """How long requests of each finish class are away, for the evictors of all caches.

    `least_wait_s` is added to every wait: differences far below it do not count.
    """

    def __init__(self, *, least_wait_s: float) -> None: ...
    def expect(self, finish_class: int, away: Sequence[float]) -> None:
        """Set the share that is still away at each of `AGE_EDGES_S`.

        Raises:
            ValueError: The class is out of range, or the shares do not fall from 1.
        """

@final
class ReturnTimeEvictor(Evictor):
    """agentcache's own evictor: the learnt wait for a request's blocks, and what each of them costs.

    The blocks of one `add` are a group: they share one chance of return. A block that is used again moves on, unless
    another job (`FreeContext.job`) that has used it waits with a better chance: then it stays with that one.

    First goes the block with the least cost x E[1 / wait for the group's return], by its `FreeContext.finish_class`.
    The loss of a block at position n costs max(floor, slope * n + base) seconds. Within a group the cheapest block goes
    first.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        slope_s: float,
        base_s: float,
        floor_s: float,
        waits: ReturnWaits,
    ) -> None: ...

@final
class MaxScoreEvictor(Evictor):
    """Baseline: the block that is least likely to be used again goes first, whatever it costs.

    Score of a block that has been idle for τ: factor·min(exp(−τ/α), exp(−(τ−τ₀)/β)). O(n) per call of `evict`.
    """

    def __init__(self, *, num_blocks: int, alpha_s: float, beta_s: float, tau0_s: float) -> None: ...

@final
class PensieveEvictor(Evictor):
    """Baseline: recomputation cost over the time since the last use, as in Pensieve.

    Score of a block at position n, idle for τ: factor·max(floor, slope·n + base)/τ. O(n) per call of `evict`. Idle
    times below a millisecond count as one.
    """

    def __init__(self, *, num_blocks: int, slope_s: float, base_s: float, floor_s: float) -> None: ...

@final
class PinnedEvictor(Evictor):
    """Soft pins on top of any evictor: pinned blocks are free, and the last to be taken.

    Without pins the same victims as `inner`. When `inner` has no block left, the pin worth least loses its own.

    A pin is any number of the caller's from 0; it begins with its first block or value and ends with `release`. It
    protects blocks with KV alone: those added with its number in their context, reserved or adopted. A block that is
    used again is not the pin's until it is freed again; one that is evicted counts as a loss. Of several pins that left
    a block the one worth most has it, and the others get it then. Evicting n pinned blocks takes
    O(pins + n log pins).
    """

    def __init__(self, inner: Evictor, *, num_blocks: int, cheapest_first: bool) -> None:
        """Make an evictor without pins around another.

        Args:
            inner: An empty evictor of as many blocks. The caller must not use it from now on.
            num_blocks: How many blocks there are; their ids count from 0.
            cheapest_first: A pin loses its blocks from the lowest position on, else in the order in which they came.

        Raises:
            ValueError: `inner` holds blocks, or does not know as many.
        """

    def set_value(self, pin: int, value: float) -> None:
        """Say what the loss of one of the pin's blocks would cost, compared across pins alone. 0 at first.

        Of pins that are worth the same, the lower number loses first.

        Args:
            pin: Any number from 0.
            value: In any unit, finite and at least 0.

        Raises:
            ValueError: The pin or the value is out of range.
        """

    def reserve(self, pin: int, block_ids: Sequence[int]) -> None:
        """Make blocks with KV that are in use the pin's as well, from when they are freed.

        Args:
            pin: Any number from 0.
            block_ids: Blocks that are not free.

        Raises:
            ValueError: The pin is negative, or a block is free with KV or unknown.
        """

    def release(self, pin: int, now_s: float) -> int:
        """End a pin. Its blocks age on in `inner` as if they had never been pinned, or are other pins'.

        Args:
            pin: Any number from 0.
            now_s: The present, in seconds.

        Returns:
            How many blocks it had.

        Raises:
            ValueError: The pin is negative, or `now_s` not finite.
        """

    def release_some(self, pin: int, count: int, now_s: float) -> int:
        """Let go of the `count` blocks that the pin would lose first, as `release` does.

        Returns:
            How many there were: fewer if the pin has fewer.

        Raises:
            ValueError: As `release`.
        """

    def adopt(self, pin: int, block_ids: Sequence[int], now_s: float) -> int:
        """Pin free blocks for a request that is about to use them; other blocks and pinned ones are ignored.

        For `inner` they are used again now, and once released they were last used now.

        Args:
            pin: Any number from 0.
            block_ids: Any numbers.
            now_s: The present, in seconds.

        Returns:
            How many were free with KV and in no pin.

        Raises:
            ValueError: As `release`.
        """

    def size_of(self, pin: int) -> int:
        """Return how many blocks a pin has, 0 if there is no such pin."""

    def reserved_by(self, pin: int) -> int:
        """Return how many blocks a pin has, or gets when they are freed, without those that it adopted."""

    @property
    def inner(self) -> Evictor:
        """The evictor that orders the blocks in no pin."""

    @property
    def pinned(self) -> int:
        """Return how many blocks all pins have."""

    @property
    def adopted(self) -> int:
        """Return how many of those were adopted."""

    @property
    def reservations(self) -> int:
        """Return the pins, each counted once for every set of blocks that just it and the same others get when freed.

        That is what their memory and the time of a `release` grow with, beside the blocks.
        """

    def take_losses(self) -> dict[int, int]:
        """Return how many blocks each pin has lost since the last call, had or reserved; released pins' too."""

class FreeQueue:
    """Blocks are objects with an id and a position; `blocks[i]` is the one with the id i. Holds none of them."""

    context: FreeContext
    def __init__(
        self,
        *,
        num_blocks: int,
        evictor: Evictor,
        notes_reuse: bool,
        block_type: type,
        id_attribute: str,
        position_attribute: str,
    ) -> None:
        """Make a queue of which no block is free. With `notes_reuse` it tells the evictor when requests come back."""
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def by_capacity(self) -> tuple[int, float]: ...
    @property
    def by_reset(self) -> tuple[int, float]: ...
    def free_n(self, blocks: Sequence[Any], now_s: float, freed_s: float | None = None) -> None: ...
    def prepend_n(self, blocks: Sequence[Any]) -> None: ...
    def take_n(self, blocks: list[Any], count: int, now_s: float) -> list[Any]: ...
    def remove(self, block: Any) -> None: ...
    def forget_kv_at(self, now_s: float) -> None: ...
    def list_free(self, blocks: list[Any], now_s: float) -> list[Any]: ...
    def list_first(self, blocks: list[Any], count: int, now_s: float) -> list[Any]: ...
