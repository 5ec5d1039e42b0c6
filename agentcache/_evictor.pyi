from collections.abc import Sequence
from typing import Any

from agentcache import errors
from agentcache.policy import evictor as policy

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
        copy: bool = False,
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
    def copy(self) -> bool:
        """Another cache has the blocks as well: their use and loss here tell nothing of when their job returns."""
    @property
    def pin(self) -> int | None:
        """The pin that keeps the blocks."""
    def of_copy(self, by: float) -> FreeContext:
        """Return the context of blocks that another cache has as well, with `by` times their value."""
    def without_pin(self) -> FreeContext: ...

class Evictor:
    """The methods of `agentcache.policy.evictor.Evictor`, which documents them, as C++ calls them."""

    def add(
        self,
        block_ids: Sequence[int],
        positions: Sequence[int],
        now_s: float,
        context: FreeContext,
    ) -> None: ...
    def add_empty(self, block_ids: Sequence[int]) -> None: ...
    def evict(self, count: int, now_s: float) -> list[int]: ...
    def remove(self, block_id: int) -> None: ...
    def settle(self, now_s: float) -> None: ...
    def observe_return(self, finish_class: int, age_s: float, share: float) -> None: ...
    def observe_eviction(self, finish_class: int, age_s: float, share: float) -> None: ...
    def reprice(self, block_ids: Sequence[int], cost_s: float) -> None: ...
    def forget(self, block_id: int) -> None: ...
    def order(self, now_s: float) -> list[int]: ...
    def first(self, count: int, now_s: float) -> list[int]: ...
    def __len__(self) -> int: ...
    def check_integrity(self) -> None: ...

class PythonEvictor(Evictor):
    """Hands every call on to an evictor written in Python."""

    def __init__(self, evictor: policy.Evictor) -> None: ...

class LruEvictor(Evictor):
    def __init__(self) -> None: ...

class AsymCacheEvictor(Evictor):
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
    ) -> None: ...
    def set_lambda(self, value: float) -> None: ...

class AsymCacheLinearEvictor(Evictor):
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
    ) -> None: ...
    def set_lambda(self, value: float) -> None: ...

class ReturnTimeEvictor(Evictor):
    def __init__(
        self,
        *,
        num_blocks: int,
        slope_s: float,
        base_s: float,
        floor_s: float,
        window: float,
        prior_returns: float,
        least_wait_s: float,
    ) -> None: ...

class MaxScoreEvictor(Evictor):
    def __init__(self, *, num_blocks: int, alpha_s: float, beta_s: float, tau0_s: float) -> None: ...

class PensieveEvictor(Evictor):
    def __init__(self, *, num_blocks: int, slope_s: float, base_s: float, floor_s: float) -> None: ...

class PinnedEvictor(Evictor):
    def __init__(self, inner: Evictor, *, num_blocks: int, cheapest_first: bool) -> None: ...
    def reserve(self, pin: int, block_ids: Sequence[int]) -> None: ...
    def set_value(self, pin: int, value: float) -> None: ...
    def release(self, pin: int, now_s: float) -> int: ...
    def release_some(self, pin: int, count: int, now_s: float) -> int: ...
    def adopt(self, pin: int, block_ids: Sequence[int], now_s: float) -> int: ...
    def size_of(self, pin: int) -> int: ...
    def reserved_by(self, pin: int) -> int: ...
    @property
    def pinned(self) -> int: ...
    @property
    def adopted(self) -> int: ...
    @property
    def reservations(self) -> int: ...
    def take_losses(self) -> dict[int, int]: ...

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
    ) -> None: ...
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def by_capacity(self) -> tuple[int, float]: ...
    @property
    def by_reset(self) -> tuple[int, float]: ...
    def free_n(self, blocks: Sequence[Any], now_s: float) -> None: ...
    def prepend_n(self, blocks: Sequence[Any]) -> None: ...
    def take_n(self, blocks: list[Any], count: int, now_s: float) -> list[Any]: ...
    def remove(self, block: Any) -> None: ...
    def take_reuses(self, now_s: float) -> list[float]: ...
    def forget_kv_at(self, now_s: float) -> None: ...
    def list_free(self, blocks: list[Any], now_s: float) -> list[Any]: ...
    def list_first(self, blocks: list[Any], count: int, now_s: float) -> list[Any]: ...
