"""Agents of a rollout in every state in which a pause may find them, on an engine over two caches."""

from __future__ import annotations

from dataclasses import dataclass, field

from hand_clock import Clock
from live_engine import BLOCK, Reply, make_prompt
from pausable_engine import PausableEngine
from pushed_out import SEARCH, settle
from steered_scheduler import learn_that_tools_are_fast

PINNED, SHELVED, FETCHED = (make_prompt(seed, tokens=blocks * BLOCK + 5) for seed, blocks in ((1, 12), (2, 6), (3, 6)))
RUNNING, HELD = make_prompt(4, tokens=3 * BLOCK), make_prompt(5, tokens=22 * BLOCK)
RUNNING_TOKENS, HELD_TOKENS, TURN_TOKENS = 40, 60, 4


@dataclass
class Rollout:
    """`running` runs, `held` waits by our admission, and blocks of `fetched` come from the CPU cache for its 2nd turn.

    Two more jobs are between turns: the KV of `pinned` is pinned, that of `shelved` is in the CPU cache alone.
    """

    engine: PausableEngine
    running: str = ""
    held: str = ""
    fetched: str = ""
    prompts: dict[str, list[int]] = field(default_factory=dict)

    def begin(self) -> None:
        engine, scheduler = self.engine, self.engine.scheduler
        scheduler.clock = Clock()
        learn_that_tools_are_fast(engine)  # type: ignore[arg-type]  # It asks for a scheduler, as an engine has one.
        self._first_turn("shelved", SHELVED)
        self._first_turn("fetched", FETCHED)
        # The pins expire, and an idle engine copies what goes next; the GPU loses it then.
        scheduler.clock.now_s += 100
        settle(engine)
        for prompt in (SHELVED, FETCHED):
            engine.forget(prompt, range(len(prompt) // BLOCK))
        self._first_turn("pinned", PINNED)
        self.running = engine.add(RUNNING, RUNNING_TOKENS, session="running", calls=[])
        for _ in range(3):
            engine.step()
        self.held = engine.add(HELD, HELD_TOKENS, session="held", calls=[])
        self.fetched = self.second_turn("fetched")
        # Prefills wait until what goes next is stored.
        for _ in range(2):
            scheduler.clock.now_s += 0.05
            engine.step()
        self._check()

    def second_turn(self, job: str) -> str:
        return self.engine.add(self.prompts[job], TURN_TOKENS, session=job, calls=[SEARCH])

    def _first_turn(self, job: str, prompt: list[int]) -> None:
        reply = self.engine.ask(prompt, TURN_TOKENS, session=job, calls=[SEARCH])
        self.prompts[job] = prompt + reply.tokens + make_prompt(len(prompt), tokens=20)

    def _check(self) -> None:
        scheduler = self.engine.scheduler
        assert scheduler.tracker.pins.blocks == 12
        assert self.count_cached("shelved") == (0, 6)
        assert [request.request_id.rpartition("-")[0] for request in scheduler.running] == [self.running]
        reasons = {name.rpartition("-")[0]: state.waits.reason for name, state in scheduler.tracker.states.items()}
        assert reasons[self.held] in ("pins", "new job", "load")
        assert reasons[self.fetched] == "fetch"
        assert scheduler.tier.counts.fetched == 6

    def count_cached(self, job: str) -> tuple[int, int]:
        """How many blocks of the job's next prompt are in the GPU's cache, and in the CPU cache."""
        keys = self.engine.block_keys(self.prompts[job])
        scheduler = self.engine.scheduler
        on_gpu = sum(self.engine.pool.cached_block_hash_to_block.get_one_block(key) is not None for key in keys)
        return on_gpu, sum(map(scheduler.tier.host.map.holds, keys))

    def finish(self, *names: str) -> list[Reply]:
        self.engine.finish()
        settle(self.engine)
        self.engine.scheduler.check_integrity()
        return [self.engine.reply(name) for name in names]
