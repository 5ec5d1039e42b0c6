"""What is copied back to the GPU before it is asked for: what jobs have left that are about to come back.

A prefetch takes the place of blocks that are less likely to be asked for. It begins while no request waits and nothing
else is on its way, so that it takes no room and no time from anybody. It is part of the GPU's prefix cache like any
other block when it has come, and may be evicted like any other before its job is back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, takewhile
from typing import NamedTuple

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId

from agentcache.engine.blocks.block_queue import BlockQueue
from agentcache.engine.blocks.pins import Pins
from agentcache.engine.jobs.away_turns import AwayTurn, AwayTurns
from agentcache.engine.segments.cached_blocks import watched_map_of
from agentcache.engine.tier.fetching import Fetch, Fetching
from agentcache.engine.tier.host_cache import HostCache
from agentcache.engine.tier.storing import Storing
from agentcache.policy.return_price import ReturnPrice

# Who is likely to be back is back within so many seconds by at least this chance, and what gives way is at most half as
# likely to be asked for. Chosen on seeds 0 to 2, 11 (docs/results/host-memory-choices.md#prefetches).
_WITHIN_S = 5.0
_LEAST_CHANCE = 0.5
_LESS_LIKELY = 0.5
# So long one prefetch takes the link: a request that comes meanwhile waits no longer for it.
_MOST_S = 0.025
_LOOK_AGAIN_S = 0.25
# Turns of which all blocks are looked up at a time.
_MOST_TURNS = 8


@dataclass(slots=True)
class PrefetchStats:
    """Blocks since the start, by what became of them.

    `used`: on the GPU when their job was back; `late`: still on their way then; `wasted`: evicted before, or the job
    did not come back.
    """

    used: int = 0
    late: int = 0
    wasted: int = 0


class _Guard(NamedTuple):
    """What came for the turn of `owner` is kept until then."""

    owner: str
    until_s: float


class Prefetching:
    """Chooses one prefetch at a time, and counts what becomes of it."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        queue: BlockQueue,
        host: HostCache,
        fetching: Fetching,
        storing: Storing,
        away: AwayTurns,
        pins: Pins | None,
        price: ReturnPrice,
        spare_blocks: int,
        count_waiting: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """Prefetch while nobody waits and `spare_blocks` of the GPU's stay free beside it; `pins` keep what comes."""
        self.stats = PrefetchStats()
        self._pool = pool
        self._queue = queue
        self._host = host
        self._fetching = fetching
        self._storing = storing
        self._away = away
        self._pins = pins
        self._price = price
        self._spare_blocks = spare_blocks
        self._count_waiting = count_waiting
        self._clock = clock
        self._most_blocks = max(1, int(_MOST_S / fetching.block_s))
        self._looked_s = -_LOOK_AGAIN_S
        # By the turn's owner, what came or is on its way.
        self._fetched: dict[str, list[BlockHashWithGroupId]] = {}
        self._coming: Fetch | None = None
        # By their names among the pins: the first ends first.
        self._guards: dict[str, _Guard] = {}
        self._numbers = count()
        away.on_end = self._settle

    def begin(self) -> Fetch | None:
        """Choose what to fetch beside the step that was scheduled last, while nothing else is on its way."""
        now_s = self._clock()
        self._drop_guards(list(takewhile(lambda name: self._guards[name].until_s <= now_s, self._guards)))
        if self._count_waiting() or now_s - self._looked_s < _LOOK_AGAIN_S:
            return None
        self._looked_s = now_s
        for turn, chance in self._away.rank(_WITHIN_S, _LEAST_CHANCE)[:_MOST_TURNS]:
            if wanted := self._find_wanted(turn):
                return self._begin(turn, wanted) if self._gives_way(len(wanted), chance, now_s) else None
        return None

    def end(self, fetch: Fetch) -> None:
        """Keep what has come until its job should be back. The next prefetch need not wait for the next look."""
        self._coming = None
        self._looked_s = -_LOOK_AGAIN_S
        if self._pins is not None and fetch.ahead_of is not None and fetch.ahead_of in self._fetched:
            name = f"{fetch.ahead_of}#{next(self._numbers)}"
            self._pins.guard(name, [block.block_id for block in fetch.blocks], 0.0)
            self._guards[name] = _Guard(fetch.ahead_of, self._clock() + _WITHIN_S)

    def fail(self, fetch: Fetch) -> None:
        """Forget what did not come: it may be chosen again at the next look."""
        self._coming = None
        if fetch.ahead_of in self._fetched:
            del self._fetched[fetch.ahead_of][-len(fetch.keys) :]

    @property
    def _is_on_gpu(self) -> Callable[[BlockHashWithGroupId], bool]:
        return watched_map_of(self._pool).holds

    def _find_wanted(self, turn: AwayTurn) -> list[BlockHashWithGroupId]:
        """Find the first blocks that the host's memory alone has, up to one that neither cache has.

        What is behind such a gap is fetched with the plan of the request that comes.
        """
        is_on_gpu, is_on_host = self._is_on_gpu, self._host.map.holds
        wanted: list[BlockHashWithGroupId] = []
        for key in turn.keys:
            if is_on_gpu(key):
                continue
            if not is_on_host(key) or len(wanted) == self._most_blocks:
                break
            wanted.append(key)
        return wanted

    def _gives_way(self, count: int, chance: float, now_s: float) -> bool:
        """Tell whether what goes for so many blocks is less likely to be asked for, and safe."""
        if self._pool.get_num_free_blocks() < count + self._spare_blocks:
            return False
        victims = [block for block in self._queue.list_victims(count) if block.block_hash is not None]
        # Most are of a few requests.
        uses = {(use.context.finish_class, use.freed_s) for use in map(self._storing.last_use_of, victims)}
        most = _LESS_LIKELY * chance
        if any(self._away.chance(finish_class, now_s - freed_s, _WITHIN_S) > most for finish_class, freed_s in uses):
            return False
        return self._storing.can_lose(count)

    def _begin(self, turn: AwayTurn, wanted: list[BlockHashWithGroupId]) -> Fetch:
        self._fetched.setdefault(turn.owner, []).extend(wanted)
        self._coming = self._fetching.begin_ahead(turn.owner, wanted)
        return self._coming

    def _drop_guards(self, names: list[str]) -> None:
        for name in names:
            del self._guards[name]
            if self._pins is not None:
                self._pins.drop_guard(name)

    def _settle(self, turn: AwayTurn, *, is_back: bool) -> None:
        """Count what became of a turn's blocks: its job is back, or will not be."""
        keys = self._fetched.pop(turn.owner, [])
        if not keys:
            return
        self._drop_guards([name for name, guard in self._guards.items() if guard.owner == turn.owner])
        if not is_back:
            self.stats.wasted += len(keys)
            return
        late = len(self._coming.keys) if self._coming is not None and self._coming.ahead_of == turn.owner else 0
        # What was evicted may have been fetched once more.
        used = sum(map(self._is_on_gpu, set(keys[: len(keys) - late])))
        self.stats.late += late
        self.stats.used += used
        self.stats.wasted += len(keys) - late - used
        # Each was evicted, and its job has come back for it.
        self._price.note_kept(used + late)
        self._storing.usefulness.note_fetched([turn.finish_class] * (used + late))
