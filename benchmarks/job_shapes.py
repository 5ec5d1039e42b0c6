"""The shape of a workload: turns and tokens of its jobs, what they share, and how much cache would hold all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from agentcache.jobs.loader import load_jobs
from agentcache.jobs.recorded_job import PromptWriter
from agentcache.jobs.settings import JobSettings
from agentcache.jobs.tokenizer import LocalTokenizer
from agentcache.models.catalog import SHAPE_PREFIX, resolve_model
from agentcache.sim.settings import DEFAULT_BLOCK_SIZE, DEFAULT_MODEL


@dataclass(slots=True)
class Shape:
    """Sizes in tokens over the jobs of some seeds: a number a job in `turns`, `ends` and `shared`, a number a turn in
    `prompts` and `replies`, a number a seed in `working_sets` and `computed`.

    `ends` is the last prompt with its reply, `shared` what the first prompt has in common with that of another job,
    `computed` all prompts together, `working_sets` the different blocks of all prompts and replies.
    """

    turns: list[int] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    replies: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    working_sets: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)


def measure_shape(settings: Sequence[JobSettings]) -> Shape:
    """`settings` has one for each seed."""
    tokenizer = LocalTokenizer(resolve_model(SHAPE_PREFIX + DEFAULT_MODEL).path)
    shape = Shape()
    for one in settings:
        firsts: list[list[int]] = []
        blocks: set[int] = set()
        before = len(shape.prompts)
        writer = PromptWriter(tokenizer)
        for recorded in load_jobs(one, tokenizer).jobs:
            prompts = [*writer.write(recorded)]
            replies = [recorded.reply(turn) for turn in range(len(prompts))]
            firsts.append(prompts[0])
            shape.turns.append(len(prompts))
            shape.prompts += map(len, prompts)
            shape.replies += map(len, replies)
            shape.ends.append(len(prompts[-1]) + len(replies[-1]))
            for prompt, reply in zip(prompts, replies, strict=True):
                add_blocks([*prompt, *reply], blocks)
        shape.shared += find_shared(firsts)
        shape.working_sets.append(DEFAULT_BLOCK_SIZE * len(blocks))
        shape.computed.append(sum(shape.prompts[before:]))
    return shape


def add_blocks(tokens: Sequence[int], blocks: set[int]) -> None:
    """Add each full block, known by itself and all before it."""
    key = 0
    for start in range(0, len(tokens) - DEFAULT_BLOCK_SIZE + 1, DEFAULT_BLOCK_SIZE):
        key = hash((key, *tokens[start : start + DEFAULT_BLOCK_SIZE]))
        blocks.add(key)


def find_shared(firsts: Sequence[list[int]]) -> list[int]:
    """What each has in common with the one that is most like it: in order, that is one of its neighbours."""
    ordered = sorted(firsts)
    common = [0, *map(count_common, ordered, ordered[1:]), 0]
    return [max(pair) for pair in pairwise(common)]


def count_common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def show(sample: Sequence[int]) -> str:
    """Median and 95th percentile."""
    return " / ".join(f"{value:,.0f}" for value in np.percentile(sample, [50, 95]))
