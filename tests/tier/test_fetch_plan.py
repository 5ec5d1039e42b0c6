"""Blocks are fetched that a plan of gaps reuses, and that cost more to compute than to fetch."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.link_profile import Link
from agentcache.policy.price import RecomputeCost
from agentcache.policy.reuse_plan import FetchCosts, Hits, Interval, SegmentCosts, plan_fetch, plan_segments

BLOCK = 16


def make_costs(
    *, slope_s: float = 0.1, base_s: float = 0.0, row_s: float = 0.0, latency_s: float = 0.0, fetch_s: float = 1.0
) -> FetchCosts:
    """Block i costs `base_s` + (i + 1) · `slope_s` to compute."""
    compute = SegmentCosts(RecomputeCost(slope_s / BLOCK, base_s, 1e-9), row_s, BLOCK)
    return FetchCosts(compute, Link(latency_s, fetch_s), compute_price=1.0)


def read(picture: str, place: str) -> bytes:
    """Mark the blocks that are in a place, of blocks on the GPU, in the CPU cache and in neither: g, h and a dot."""
    return bytes(each == place for each in picture)


def find_plan(picture: str, costs: FetchCosts, max_gaps: int = 8, inputs: tuple[Interval, ...] = ()) -> str:
    """Blocks that are fetched as f, in the same picture."""
    plan = plan_fetch(read(picture, "g"), read(picture, "h"), costs, max_gaps, inputs)
    fetched = {index for run in plan for index in range(*run)}
    assert all(picture[index] == "h" for index in fetched)
    return "".join("f" if index in fetched else place for index, place in enumerate(picture))


def find_slowly(picture: str, costs: FetchCosts, max_gaps: int) -> str:
    """Find the same, block by block."""
    compute_s, fetch_s = costs.compute.block_s, costs.link.block_s
    dear = [costs.compute_price * compute_s(index) > fetch_s for index in range(len(picture))]
    is_read = [place == "g" or (place == "h" and dear[index]) for index, place in enumerate(picture)]
    starts = [index for index, (before, here) in enumerate(pairwise((False, *is_read))) if here and not before]
    ends = [index for index, (here, behind) in enumerate(pairwise((*is_read, False)), 1) if here and not behind]
    runs = [Interval(*run) for run in zip(starts, ends, strict=True)]
    prefix = runs.pop(0).end if is_read[:1] == [True] else 0
    reused = set(range(prefix))
    for run in plan_segments(Hits(prefix, tuple(runs)), costs.compute, max_gaps).kept:
        reused.update(range(*run))
    fetched = {index for index in reused if picture[index] == "h"}
    saved_s = sum(costs.compute_price * compute_s(index) - fetch_s for index in fetched) - costs.link.latency_s
    return "".join("f" if index in fetched and saved_s > 0 else place for index, place in enumerate(picture))


# In eighths: sums are exact, in whatever order.
COSTS = st.builds(
    make_costs,
    slope_s=st.integers(0, 8).map(lambda eighths: eighths / 8),
    base_s=st.integers(0, 16).map(float),
    row_s=st.integers(0, 3).map(float),
    latency_s=st.integers(0, 5).map(float),
    fetch_s=st.integers(0, 8).map(float),
)


@given(st.text("gh.", max_size=12), COSTS, st.integers(1, 3), st.integers(0, 4))
def test_the_plan_is_that_of_a_slow_search(picture: str, costs: FetchCosts, price: int, max_gaps: int) -> None:
    costs = costs._replace(compute_price=float(price))
    assert find_plan(picture, costs, max_gaps) == find_slowly(picture, costs, max_gaps)


@pytest.mark.parametrize(
    ("picture", "plan"),
    [
        # A block costs more to compute than to fetch from the eleventh on.
        ("h" * 16, "h" * 10 + "f" * 6),
        ("gg" + "h" * 14, "gg" + "h" * 8 + "f" * 6),
        ("h" * 6, "h" * 6),
        ("g" * 11 + "hhh..", "g" * 11 + "fff.."),
        ("hhhhhh..hhhhhhgg", "hhhhhh..hhffffgg"),
    ],
)
def test_the_head_is_computed_and_the_tail_fetched(picture: str, plan: str) -> None:
    assert find_plan(picture, make_costs(fetch_s=1.05)) == plan


def test_a_fast_link_fetches_all_that_is_there() -> None:
    assert find_plan("hhgg.hhh..h", make_costs(base_s=13.0, row_s=2.0)) == "ffgg.fff..f"


def test_what_no_fill_request_pays_for_is_not_fetched() -> None:
    assert find_plan("gg.h..hhhh", make_costs(base_s=1.0, fetch_s=0.1, row_s=3.0)) == "gg.h..ffff"


def test_with_no_gap_left_only_the_prefix_is_fetched() -> None:
    costs = make_costs(base_s=2.0)
    assert find_plan("hhh.hhhh", costs, max_gaps=0) == "fff.hhhh"
    assert find_plan("hhh.hhhh", costs, max_gaps=1) == "fff.ffff"


def test_what_saves_less_than_the_latency_is_computed() -> None:
    # The last six save 0.05 to 0.55.
    assert find_plan("h" * 16, make_costs(fetch_s=1.05, latency_s=1.7)) == "h" * 10 + "f" * 6
    assert find_plan("h" * 16, make_costs(fetch_s=1.05, latency_s=1.9)) == "h" * 16


def test_more_is_fetched_while_others_stand_still() -> None:
    alone = make_costs(fetch_s=1.05)
    assert find_plan("h" * 16, alone._replace(compute_price=3.0)) == "h" * 3 + "f" * 13
    assert find_plan("h" * 16, alone._replace(compute_price=20.0)) == "f" * 16


def test_nothing_is_fetched_that_begins_within_an_encoder_input() -> None:
    """A fill request's gap cannot end there."""
    costs = make_costs(fetch_s=1.05)
    assert find_plan("h" * 16, costs, inputs=(Interval(9, 13),)) == "h" * 13 + "fff"
    assert find_plan("h" * 16, costs, inputs=(Interval(9, 11), Interval(11, 16))) == "h" * 16
