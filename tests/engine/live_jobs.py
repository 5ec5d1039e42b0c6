"""Jobs of several turns that together want more than the cache holds, and what must hold while they are served."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from grouped_scheduler import FULL, RECURRENT, WINDOW, make_lone
from hand_clock import Clock
from lone_scheduler import BLOCK_SIZE, LoneScheduler, Step, make_config, make_scheduler
from tiered_scheduler import TieredScheduler, make_tiered
from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import KVCacheSpec

from agentcache.engine.constants import SCHEDULER_CLASS
from tool_runtime.agent.job import ToolCall

WITH_TIER = ("agentcache", "agentcache-interactive")
POLICIES = (*WITH_TIER, "asymcache", "continuum-paper", "continuum-code", "continuum+asymcache", "lru", "vllm")
SEARCH = ToolCall("search", "{}")
FAMILIES: dict[str, list[KVCacheSpec]] = {"windows": [WINDOW, FULL], "states": [RECURRENT, FULL]}
# As of a fetch, which waits for so many steps until what it evicts is stored.
MOST_POSTPONED = 4
# Clients that come back together do so at multiples of it, in steps.
BELL = 20


@dataclass(frozen=True)
class Case:
    """All that decides a run. `together` of the turns come at once, `aborted` of the steps end a request.

    `shared` blocks begin all prompts; a prompt grows up to `most` of the cache. `host_blocks` 0 is no CPU cache. A
    block takes `block_s` to compute, a fill request `row_s`.
    """

    seed: int
    policy: str
    blocks: int
    host_blocks: int = 0
    pace: float = 1.0
    in_flight: int = 1
    step_tokens: int = 96
    rows: int = 6
    jobs: int = 5
    turns: int = 3
    shared: int = 2
    most: float = 0.9
    reply: int = 20
    gap: int = 10
    together: float = 0.5
    aborted: float = 0.0
    priorities: bool = False
    block_s: float = 1.0
    row_s: float = 0.0
    family: str = "full"


def draw_case(seed: int) -> Case:
    chance = random.Random(seed)
    policy = chance.choice((*WITH_TIER, *POLICIES))
    blocks = chance.choice((24, 32, 48, 64))
    host = chance.choice((0, 4, blocks // 2, blocks, 3 * blocks, 6 * blocks)) if policy in WITH_TIER else 0
    return Case(
        seed=seed,
        policy=policy,
        blocks=blocks,
        host_blocks=host,
        pace=chance.choice((0.05, 0.2, 0.5, 1.0)) if host else 1.0,
        in_flight=chance.choice((1, 2)),
        step_tokens=chance.choice((24, 48, 96, 256)),
        rows=chance.choice((2, 6)),
        jobs=chance.randint(2, 9),
        turns=chance.randint(2, 4),
        shared=chance.choice((0, 2, blocks // 4)),
        most=chance.choice((0.3, 0.6, 0.9)),
        reply=chance.choice((3, 20, 60)),
        gap=chance.choice((0, 2, 10, 40)),
        together=chance.choice((0.0, 0.5, 1.0)),
        aborted=chance.choice((0.0, 0.0, 0.02)),
        priorities=chance.random() < 0.2,
        block_s=chance.choice((0.0, 0.05, 1.0)),
        row_s=chance.choice((0.0, 0.0, 0.1)),
        family="full" if host else chance.choice(("full", "full", *FAMILIES)),
    )


@dataclass
class Turn:
    """A request that is to come at a step. `number` counts the turns of its job."""

    due: int
    job: int
    number: int
    prompt: list[int]


@dataclass
class Counts:
    """Of a whole run, in tokens, blocks and steps. A turn asks for its prompt, and wants its reply as well.

    Steps are busy with tokens, or `fetching` alone; `resting` are those behind the last request.
    """

    asked_blocks: int = 0
    wanted_tokens: int = 0
    serial_steps: int = 0
    computed_tokens: int = 0
    fetched_blocks: int = 0
    busy: int = 0
    fetching: int = 0
    resting: int = 0


def make_live(model_path: str, case: Case) -> LoneScheduler:
    engine: dict[str, Any] = {
        "max_model_len": case.blocks * BLOCK_SIZE,
        "max_num_batched_tokens": case.step_tokens,
        "max_num_seqs": case.rows,
    }
    if case.priorities:
        engine["scheduling_policy"] = "priority"
    knobs = {"policy": case.policy, "tuning": {"row_s": case.row_s}}
    if case.host_blocks:
        return make_tiered(
            model_path,
            blocks=case.blocks,
            host_blocks=case.host_blocks,
            in_flight=case.in_flight,
            pace=case.pace,
            seed=case.seed,
            engine=engine,
            **knobs,
        )
    if case.family in FAMILIES:
        # The other group takes blocks as well.
        return make_lone(
            model_path,
            FAMILIES[case.family],
            case.blocks * 3 // 2,
            in_flight=case.in_flight,
            shadow=case.family == "windows",
            engine=engine,
            **knobs,
        )
    config = make_config(model_path, SCHEDULER_CLASS, engine, **knobs)
    scheduler = make_scheduler(config, case.blocks, clock=Clock())
    return LoneScheduler(scheduler, case.in_flight, shadow=True)


class LiveRun:
    """Serves a case's jobs, a second a step, and asserts at each that work goes on.

    - Pins hold back a request only while others run. So while any request is left there are tokens in each step, or
      blocks are on their way, or what runs awaits the tokens of steps in flight, or a fetch is postponed.
    - While nothing runs, requests that wait for fetches hold what has come: at most the cache's blocks together, and as
      many again that were under way for requests behind them.
    - Together jobs take no more steps than twice what they would take one after the other without a cache: what is
      preempted is computed again.
    """

    def __init__(self, lone: LoneScheduler, case: Case) -> None:
        self.lone = lone
        self.case = case
        self.counts = Counts()
        self.now = 0
        self._chance = random.Random(case.seed)
        self._asked: dict[str, Turn] = {}
        self._still = 0
        self._fetched_before = 0
        self._shared = self._tokens(case.shared * BLOCK_SIZE)
        # One block is vLLM's placeholder.
        cache = (case.blocks - 1) * BLOCK_SIZE
        self._most_tokens = min(int(case.most * (case.blocks - 1)) * BLOCK_SIZE, cache - case.reply)
        self._due = [self._begin(job) for job in range(case.jobs)]

    def run(self) -> Counts:
        while self._due or not self.lone.idle:
            self._ask_due()
            if self._asked and self._chance.random() < self.case.aborted:
                name = self._chance.choice(list(self._asked))
                self.lone.abort(name)
                turn = self._asked.pop(name)
                self._follow(turn, turn.prompt)
            self._step()
        return self.counts

    def _begin(self, job: int) -> Turn:
        least = max(1, self.case.blocks // 10) * BLOCK_SIZE
        length = self._chance.randint(least, max(least, self._most_tokens))
        return self._plan(job, 0, (self._shared + self._tokens(length))[:length])

    def _plan(self, job: int, number: int, prompt: list[int]) -> Turn:
        due = self.now + self._chance.randint(0, self.case.gap)
        if self._chance.random() < self.case.together:
            due = (due // BELL + 1) * BELL
        return Turn(due, job, number, prompt)

    def _ask_due(self) -> None:
        due = [turn for turn in self._due if turn.due <= self.now]
        self._due = [turn for turn in self._due if turn.due > self.now]
        for turn in due:
            case, counts, length = self.case, self.counts, len(turn.prompt)
            name = f"job-{turn.job}/{turn.number}"
            self._asked[name] = turn
            last = turn.number == case.turns - 1
            self.lone.add(
                name,
                turn.prompt,
                output_tokens=case.reply,
                calls=[] if last else [SEARCH],
                session_id=f"job-{turn.job}",
                priority=turn.job % 3 if case.priorities else 0,
            )
            counts.asked_blocks += length // BLOCK_SIZE
            counts.wanted_tokens += length + case.reply
            counts.serial_steps += cdiv(length, case.step_tokens) + case.in_flight * (case.reply + 1)

    def _follow(self, turn: Turn, tokens: list[int]) -> None:
        if turn.number + 1 == self.case.turns:
            return
        grown = tokens + self._tokens(self._chance.randint(1, 5 * BLOCK_SIZE))
        self._due.append(self._plan(turn.job, turn.number + 1, grown[: max(self._most_tokens, len(turn.prompt))]))

    def _step(self) -> None:
        lone = self.lone
        waits, fetches = bool(lone.scheduler.requests), self._is_fetching()
        if not isinstance(lone, TieredScheduler):
            # The other one does both itself.
            lone.scheduler.clock.now_s += 1.0
        step = lone.step()
        if not isinstance(lone, TieredScheduler):
            lone.scheduler.check_integrity()
        self.now += 1
        self._count(step)
        self._check(step, waits=waits, fetches=fetches or self._is_fetching())
        for name, tokens in step.finished.items():
            self._follow(self._asked.pop(name), tokens)

    def _is_fetching(self) -> bool:
        tier = self.lone.scheduler.tier
        return tier is not None and tier.is_fetching

    def _count(self, step: Step) -> None:
        counts, tier = self.counts, self.lone.scheduler.tier
        counts.computed_tokens += sum(tokens for tokens, *_ in step.scheduled.values())
        counts.fetched_blocks = tier.counts.fetched if tier is not None else 0

    def _check(self, step: Step, *, waits: bool, fetches: bool) -> None:
        counts, case = self.counts, self.case
        if step.scheduled:
            counts.busy += 1
            self._still, self._fetched_before = 0, counts.fetched_blocks
        elif waits and fetches:
            counts.fetching += 1
        elif waits:
            self._still += 1
        elif not self._due:
            counts.resting += 1
        between = counts.fetched_blocks - self._fetched_before
        assert self._still <= MOST_POSTPONED + case.in_flight, "requests wait for nothing"
        assert between <= 2 * case.blocks, "requests take from each other what they have fetched"
        assert counts.busy <= 2 * counts.serial_steps, "what is computed is lost, and computed again"
        assert counts.fetching <= (2 * counts.fetched_blocks + 40) / case.pace, "copies never end"
        assert counts.resting <= 40 / case.pace, "an idle engine copies for ever"

    def _tokens(self, count: int) -> list[int]:
        return [self._chance.randrange(8000) for _ in range(count)]
