from collections.abc import Callable, Sequence
from typing import Any

from agentcache import errors
from agentcache.policy import evictor as policy

class IntegrityError(errors.IntegrityError): ...
class NotFreeError(KeyError): ...

class Evictor:
    def add_n(
        self, block_ids: Sequence[int], positions: Sequence[int], now_s: float, factor: float, end_class: int = 0
    ) -> None: ...
    def add_empty_n(self, block_ids: Sequence[int]) -> None: ...
    def evict_n(self, count: int, now_s: float) -> list[int]: ...
    def remove(self, block_id: int) -> None: ...
    def order(self, now_s: float) -> list[int]: ...
    def __len__(self) -> int: ...
    def check_integrity(self) -> None: ...

class PythonEvictor(Evictor):
    def __init__(self, evictor: policy.Evictor) -> None: ...

class Lru(Evictor):
    def __init__(self) -> None: ...

class AsymCache(Evictor):
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

class AsymCacheLinear(Evictor):
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

class Grouped(Evictor):
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

class MaxScore(Evictor):
    def __init__(self, *, num_blocks: int, alpha_s: float, beta_s: float, tau0_s: float) -> None: ...

class Pensieve(Evictor):
    def __init__(self, *, num_blocks: int, slope_s: float, base_s: float, floor_s: float) -> None: ...

class FreeQueue:
    """Blocks are objects with an id and a position, `blocks[i]` is the one with the id i."""

    clock: Callable[[], float]
    # Multiplies the value of the blocks that are appended from now on.
    factor: float
    # How the requests ended whose blocks are appended from now on: a number of the caller's from 0 to 1023, 0 unknown.
    end_class: int
    def __init__(
        self,
        *,
        blocks: list[Any],
        evictor: Evictor,
        clock: Callable[[], float],
        observe_reuse: Callable[[float], None] | None,
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
    def append(self, block: Any) -> None: ...
    def append_n(self, blocks: Sequence[Any]) -> None: ...
    def prepend_n(self, blocks: Sequence[Any]) -> None: ...
    def popleft_n(self, n: int) -> list[Any]: ...
    def remove(self, block: Any) -> None: ...
    def forget_kv(self) -> None:
        """No free block holds KV any more; all stay free, in the order in which they would have gone."""

    def get_all_free_blocks(self) -> list[Any]: ...
