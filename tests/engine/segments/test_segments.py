from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.price import RecomputeCost
from agentcache.policy.reuse_plan import (
    Hits,
    Interval,
    SegmentCosts,
    begin_outside,
    find_hits,
    plan_segments,
)

BLOCK_SIZE = 16
COSTS = SegmentCosts(RecomputeCost(slope_s=1e-6, base_s=2e-4, floor_s=1e-9), row_s=1e-3, block_size=BLOCK_SIZE)

cached_blocks = st.lists(st.booleans(), max_size=24).map(bytes)


def test_hits_are_the_prefix_and_the_islands_behind_it() -> None:
    cached = bytes([1, 1, 0, 0, 1, 0, 1, 1, 1])
    assert find_hits(cached, 9) == Hits(2, (Interval(4, 5), Interval(6, 9)))
    # The last block holds the token that must be computed for its logits.
    assert find_hits(cached, 8) == Hits(2, (Interval(4, 5), Interval(6, 8)))
    assert find_hits(cached, 2) == Hits(2, ())
    assert find_hits(b"", 0) == Hits(0, ())


@given(cached_blocks, st.integers(0, 24))
def test_hits_cover_exactly_the_cached_blocks(cached: bytes, most: int) -> None:
    limit = min(most, len(cached))
    hits = find_hits(cached, limit)
    covered = set(range(hits.prefix)).union(*(range(*island) for island in hits.islands))
    assert covered == {index for index in range(limit) if cached[index]}
    ends = [hits.prefix, *itertools.chain.from_iterable(hits.islands)]
    assert ends == sorted(ends)
    assert all(before.end < after.start for before, after in itertools.pairwise(hits.islands))


@given(cached_blocks, st.lists(st.tuples(st.integers(0, 9 * BLOCK_SIZE), st.integers(1, 5 * BLOCK_SIZE)), max_size=4))
def test_no_segment_begins_within_an_image(cached: bytes, gaps_and_lengths: list[tuple[int, int]]) -> None:
    images, end = [], 0
    for gap, length in gaps_and_lengths:
        images.append(range(end + gap, end + gap + length))
        end = images[-1].stop
    inputs = [Interval(image.start // BLOCK_SIZE + 1, -(-image.stop // BLOCK_SIZE)) for image in images]
    hits = find_hits(cached, len(cached))
    found = begin_outside(hits, inputs)

    def is_within(block: int) -> bool:
        """Whether the tokens before and at the block's beginning are of one image."""
        return any({block * BLOCK_SIZE - 1, block * BLOCK_SIZE} <= {*image} for image in images)

    expected = []
    for island in hits.islands:
        starts = [block for block in range(*island) if not is_within(block)]
        expected += [Interval(starts[0], island.end)] if starts else []
    assert found == Hits(hits.prefix, tuple(expected))


@given(cached_blocks, st.integers(0, 4), st.floats(0, 5e-3))
def test_plan_saves_as_much_as_the_best_of_all_choices(cached: bytes, max_gaps: int, row_s: float) -> None:
    costs = SegmentCosts(COSTS.recompute_cost, row_s, BLOCK_SIZE)
    hits = find_hits(cached, len(cached))
    plan = plan_segments(hits, costs, max_gaps)

    def saved_s(kept: tuple[Interval, ...]) -> float:
        blocks = itertools.chain.from_iterable(range(*island) for island in kept)
        return sum(costs.recompute_cost.at(BLOCK_SIZE * (index + 1)) for index in blocks) - row_s * len(kept)

    choices = (kept for size in range(max_gaps + 1) for kept in itertools.combinations(hits.islands, size))
    assert saved_s(plan.kept) >= max(map(saved_s, choices)) - 1e-12
    assert plan.dropped == len(hits.islands) - len(plan.kept)


@given(cached_blocks)
def test_prefix_gaps_and_kept_islands_follow_one_another(cached: bytes) -> None:
    hits = find_hits(cached, len(cached))
    plan = plan_segments(hits, COSTS, 3)
    assert len(plan.gaps) == len(plan.kept)
    end = hits.prefix
    for gap, island in zip(plan.gaps, plan.kept, strict=True):
        assert gap.start == end
        assert gap.blocks > 0
        assert gap.end == island.start
        end = island.end


def test_a_later_island_is_worth_more_than_an_early_equal_one() -> None:
    plan = plan_segments(Hits(0, (Interval(1, 9), Interval(40, 48))), COSTS, max_gaps=1)
    assert plan.kept == (Interval(40, 48),)
    assert plan.gaps == (Interval(0, 40),)
