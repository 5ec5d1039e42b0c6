"""Pins of jobs under pressure, where some layers see a chunk alone: they last as they do with full attention."""

from __future__ import annotations

import random
from collections import Counter

from grouped_scheduler import CHUNKED, FULL, make_lone
from lone_scheduler import EOS, LoneScheduler
from steered_scheduler import SEARCH, learn_that_tools_are_fast, tokens_of

TURNS = 5
# The made-up model's whole cache takes less than a step to compute: with chunks nobody would leave pins alone.
PATIENT = {"patience_s": 15.0}


def end_pins(lone: LoneScheduler, seed: int) -> Counter[str]:
    """The causes by which the pins of ten jobs end, whose tools take a blink: more than the cache holds."""
    learn_that_tools_are_fast(lone)
    chance, clock = random.Random(seed), lone.scheduler.clock
    prompts = {job: tokens_of(job, chance.randrange(120, 200)) for job in range(10)}
    due = {job: clock.now_s + 0.2 * job for job in prompts}
    turns = dict.fromkeys(prompts, 0)
    while due or not lone.idle:
        clock.now_s += 0.05
        for job in [job for job, at_s in due.items() if at_s <= clock.now_s]:
            del due[job]
            turns[job] += 1
            calls = (SEARCH,) if turns[job] < TURNS else ()
            name = f"{job}.{turns[job]}"
            # It may take longer than it does, or it would be small.
            reply = [*tokens_of(900 + job, chance.randrange(4, 19)), EOS]
            lone.add(name, prompts[job], 100, calls=calls, reply=reply, session_id=f"{job}")
        finished = lone.step().finished
        lone.scheduler.check_integrity()
        for name, tokens in finished.items():
            job = int(name.split(".")[0])
            prompts[job] = [*tokens, *tokens_of(500 + 7 * job + turns[job], chance.randrange(10, 40))]
            if turns[job] < TURNS:
                due[job] = clock.now_s + chance.choice((0.2, 0.4))
    ended: Counter[str] = lone.scheduler.tracker.pins.ended
    return ended


def test_pins_of_chunked_layers_last_as_those_of_full_ones(tiny_model_path: str) -> None:
    """Two groups that keep half a job's tokens at most, beside one that keeps all: half as many blocks again."""
    shares = []
    for specs, blocks in (([FULL], 61), ([CHUNKED, CHUNKED, FULL], 91)):
        ended: Counter[str] = Counter()
        for seed in range(3):
            ended += end_pins(make_lone(tiny_model_path, specs, blocks, policy="agentcache", order=PATIENT), seed)
        assert ended["returned"] > 10
        shares.append(ended["pressure"] / ended.total())
    full, chunked = shares
    assert chunked <= full + 0.2
