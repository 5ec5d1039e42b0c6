"""Bounds of hits, against all evictions that there are, and against simulations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_plan import plan_settings
from recorded_lines import make_line, write_recording

from agentcache.plan.bounds import Reuse, find_reuse
from agentcache.plan.settings import Cell
from agentcache.plan.worker import Worker
from tool_runtime.agent.job import Context, Job, Turn
from workloads.recording.reader import read_recording
from workloads.recording.sessions import build_jobs

# A prompt is a path from the root of a tree: what has the same beginning has the same blocks there.
PATHS = ("a", "ab", "abc", "abd", "e", "ef", "efg", "h")


def make_context(path: str, *, block_tokens: int = 1, reply_tokens: int = 1, came_s: float = 0.0) -> Context:
    """Make a prompt of the path's blocks and one token more, which is always computed."""
    ids = [int.from_bytes(path[:end].encode()) for end in range(1, len(path) + 1)]
    return Context((*ids, 0), block_tokens, block_tokens * len(path) + 1, reply_tokens, came_s)


def make_reuse(paths: Sequence[str], block_tokens: int = 1) -> Reuse:
    """Requests of jobs with one turn each, one after the other."""
    contexts = [make_context(path, block_tokens=block_tokens, came_s=place) for place, path in enumerate(paths)]
    # Jobs stand in another order than their requests came in.
    return find_reuse([Job("", (), turns=(Turn(context=each),)) for each in reversed(contexts)], block_tokens)


def find_most_hits(paths: Sequence[str], blocks: int, *, prefix: bool) -> int:
    """Try every eviction: after a request any blocks stay of those that were there or that it needed."""
    needed = [frozenset(path[:end] for end in range(1, len(path) + 1)) for path in paths]

    @cache
    def go_on(place: int, held: frozenset[str]) -> int:
        if place == len(paths):
            return 0
        hits = count_hits(paths[place], held, prefix=prefix)
        there = held | needed[place]
        kept = combinations(sorted(there), min(blocks, len(there)))
        return hits + max(go_on(place + 1, frozenset(each)) for each in kept)

    return go_on(0, frozenset())


def count_hits(path: str, held: frozenset[str], *, prefix: bool) -> int:
    found = [path[:end] in held for end in range(1, len(path) + 1)]
    return [*found, False].index(False) if prefix else sum(found)


some_paths = st.lists(st.sampled_from(PATHS), min_size=1, max_size=7)


@given(some_paths, st.integers(0, 6), st.sampled_from([1, 3]))
def test_the_bound_is_what_the_best_eviction_hits(paths: list[str], blocks: int, block_tokens: int) -> None:
    """With prefix hits as with hits behind gaps: of a chain the end is wanted no sooner than its beginning."""
    reuse = make_reuse(paths, block_tokens)
    most = find_most_hits(paths, blocks, prefix=False)
    assert most == find_most_hits(paths, blocks, prefix=True)
    assert reuse.bound_hits(block_tokens * blocks) == pytest.approx(most * block_tokens / reuse.prompt_tokens)


@given(some_paths, st.sampled_from([1, 3]))
def test_larger_caches_hit_no_less_up_to_an_endless_one(paths: list[str], block_tokens: int) -> None:
    reuse = make_reuse(paths, block_tokens)
    bounds = [reuse.bound_hits(tokens) for tokens in range(40)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0.0
    assert bounds[-1] == reuse.endless_hits


def make_job(*turns: tuple[tuple[int, ...], int, int]) -> Job:
    """Make a job of turns, each with its blocks of 4 tokens, its prompt's tokens and its reply's."""
    contexts = [Context(blocks, 4, tokens, reply, float(place)) for place, (blocks, tokens, reply) in enumerate(turns)]
    return Job("", (), turns=tuple(Turn(context=each) for each in contexts))


def test_sub_agents_ask_as_others_do() -> None:
    main, agent = make_job(((1, 2), 8, 4), ((1, 2, 3), 12, 4)), make_job(((1, 2, 9), 12, 4))
    family = replace(main, agents=(agent,))
    assert find_reuse([family], 1) == find_reuse([main, agent], 1)
    assert find_reuse([family], 1) != find_reuse([main], 1)


@pytest.mark.parametrize(
    ("turns", "block_tokens", "hits"),
    [
        # Of the reply all but the last token is cached: 6 + 3.
        ([((1, 2), 6, 4), ((1, 2, 3, 4), 14, 1)], 1, 9),
        ([((1, 2), 6, 4), ((1, 2, 3, 4), 14, 1)], 2, 8),
        # The prompt's last token is computed.
        ([((1, 2), 8, 1), ((1, 2), 8, 1)], 1, 7),
        ([((1, 2), 8, 1), ((1, 2), 8, 1)], 4, 4),
        # It does not go on with the reply, and repeats a block of the prompt.
        ([((1, 2), 6, 4), ((1, 5, 6), 12, 1)], 1, 4),
        # What is cut off stays in the cache.
        ([((1, 2), 8, 4), ((1, 2), 6, 1), ((1, 2), 8, 1)], 1, 12),
        # Blocks of the cache that are no part of recorded ones.
        ([((1, 2, 3), 12, 1), ((1, 2, 9), 12, 1)], 3, 6),
        ([((1,), 3, 1)], 1, 0),
        ([], 1, 0),
    ],
)
def test_replies_and_blocks_in_part_count_to_the_token(
    turns: list[tuple[tuple[int, ...], int, int]], block_tokens: int, hits: int
) -> None:
    reuse = find_reuse([make_job(*turns)], block_tokens)
    assert reuse.endless_hits * reuse.prompt_tokens == pytest.approx(hits)
    assert reuse.bound_hits(100) == reuse.endless_hits


def test_a_reply_takes_room_that_a_prompt_before_it_had() -> None:
    job = make_job(((1,), 4, 1), ((2, 3), 6, 4), ((2, 3, 4), 10, 1), ((1,), 4, 1))
    # Nine tokens of the second turn are wanted by the third, three of the first by the fourth.
    reuse = find_reuse([job], 1)
    assert [round(reuse.bound_hits(tokens) * reuse.prompt_tokens) for tokens in (2, 9, 11, 12)] == [2, 9, 11, 12]


def test_requests_stand_as_they_were_recorded(tmp_path: Path) -> None:
    """Not as waits alone would have them: the first reply took longer than the other session."""
    lines = (
        make_line(time, 20, 5, ids, session=name, latency_ms=latency)
        for time, ids, name, latency in (
            (5_000, [5, 6], "t", 1),
            (0, [1, 2], "s", 8_000),
            (8_500, [1, 2], "s", 1),
        )
    )
    read = read_recording(write_recording(tmp_path / "r.jsonl", *lines))
    jobs = build_jobs(read, read.requests).jobs
    assert [[turn.context.came_s for turn in job.turns if turn.context] for job in jobs] == [[0.0, 8.5], [5.0]]
    assert find_reuse(jobs, 1).repeats == [{2: 19}, {}, {}]


@pytest.mark.parametrize("policy", ["vllm", "agentcache"])
def test_an_endless_cache_hits_its_bound_exactly(recording: Path, tmp_path: Path, policy: str) -> None:
    """The oracle is vLLM's scheduler with a cache that evicts nothing."""
    read = read_recording(recording)
    jobs = build_jobs(read, read.requests).jobs
    outcome = Worker(plan_settings(recording, tmp_path), jobs).run(Cell(policy, 1_000_000))
    assert outcome.hit_rate == outcome.endless_hits == outcome.clairvoyant_hits
    assert outcome.hit_rate > 0.5


def test_a_cell_is_bounded_by_all_of_its_caches(recording: Path, tmp_path: Path) -> None:
    read = read_recording(recording)
    jobs = build_jobs(read, read.requests, max_context=2_240).jobs
    worker = Worker(plan_settings(recording, tmp_path), jobs)
    one, host, engines = (
        worker.run(cell) for cell in (Cell("lru", 2_240), Cell("lru", 2_240, 2_240), Cell("lru", 2_240, engines=2))
    )
    assert one.hit_rate < one.clairvoyant_hits < host.clairvoyant_hits < one.endless_hits
    assert host.clairvoyant_hits == engines.clairvoyant_hits
    assert max(host.hit_rate, engines.hit_rate) <= host.clairvoyant_hits
