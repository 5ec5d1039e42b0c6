"""agentcache's own evictor: the learnt wait for a request's blocks, and what each of them costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from agentcache import _evictor
from agentcache.policy.compiled import CompiledEvictor


@dataclass(frozen=True, slots=True)
class Learning:
    """Settings of what the evictor makes of groups that left. `agentcache.config.GroupedConfig` tells of each."""

    window: int = 4000
    prior_returns: float = 0.1
    least_wait_s: float = 1.0


class ReturnTimeEvictor(CompiledEvictor):
    """The blocks of one `add` are a group: they share one chance of return.

    A block that is used again moves on, unless another job (`FreeContext.job`) that has used it waits with a better
    chance: then it stays with that one.

    First goes the block with the least cost x E[1 / wait for the group's return]. Waits are learnt for each
    `FreeContext.finish_class` from the groups that were used again and those that were evicted before. The loss of a
    block at position n costs max(floor, slope * n + base) seconds. Within a group the cheapest block goes first.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        slope_s: float,
        base_s: float,
        floor_s: float,
        learning: Learning = Learning(),
    ) -> None:
        super().__init__(
            _evictor.ReturnTimeEvictor(
                num_blocks=num_blocks, slope_s=slope_s, base_s=base_s, floor_s=floor_s, **asdict(learning)
            )
        )
