"""What is fetched and what is computed cost least together, against every way to reuse a short request's blocks."""

from __future__ import annotations

from itertools import pairwise, product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.engine.cpu_cache.fetch_plan import NEITHER, ON_HOST, FetchCosts, plan_fetch
from agentcache.engine.cpu_cache.link import Link
from agentcache.engine.segments.plan import Interval, SegmentCosts
from agentcache.policy.cost import RecomputeCost

BLOCK = 16


def make_costs(
    *, slope_s: float = 0.1, base_s: float = 0.0, row_s: float = 0.0, latency_s: float = 0.0, fetch_s: float = 1.0
) -> FetchCosts:
    """Block i costs `base_s` + (i + 1) · `slope_s` to compute."""
    compute = SegmentCosts(RecomputeCost(slope_s / BLOCK, base_s, 1e-9), row_s, BLOCK)
    return FetchCosts(compute, Link(latency_s, fetch_s), compute_price=1.0)


def read(picture: str) -> bytes:
    """Blocks on the GPU, in the CPU cache and in neither, as g, h and a dot."""
    return bytes(map(".gh".index, picture))


def find_plan(picture: str, costs: FetchCosts, max_gaps: int = 8) -> str:
    """Blocks that are fetched as f, in the same picture."""
    plan = plan_fetch(read(picture), costs, max_gaps)
    fetched = {index for run in plan for index in range(*run)}
    return "".join("f" if index in fetched else place for index, place in enumerate(picture))


def find_least(
    places: bytes, costs: FetchCosts, max_gaps: int, inputs: list[Interval], fetched: set[int] | None = None
) -> float:
    """Find what the cheapest way costs of all: of those that fetch exactly these blocks, if any are given."""
    least = inf
    within = {index for blocks in inputs for index in range(*blocks)}
    for reused in product(*([False] if place == NEITHER else [False, True] for place in places)):
        copied = {index for index, place in enumerate(places) if reused[index] and place == ON_HOST}
        ends = {index for index, (before, behind) in enumerate(pairwise((True, *reused))) if behind and not before}
        if len(ends) > max_gaps or ends & within or (fetched is not None and copied != fetched):
            continue
        computed_s = sum(costs.compute.block_s(index) for index, is_reused in enumerate(reused) if not is_reused)
        copied_s = len(copied) * costs.link.block_s + bool(copied) * costs.link.latency_s
        least = min(least, costs.compute_price * (computed_s + len(ends) * costs.compute.row_s) + copied_s)
    return least


@given(
    st.lists(st.sampled_from(range(3)), max_size=9).map(bytes),
    st.builds(
        FetchCosts,
        st.builds(
            SegmentCosts,
            st.builds(RecomputeCost, st.floats(0, 0.2), st.floats(-1, 2), st.just(1e-9)),
            st.floats(0, 3),
            st.just(BLOCK),
        ),
        st.builds(Link, st.floats(0, 5), st.floats(0, 4)),
        st.floats(1, 5),
    ),
    st.integers(0, 4),
    st.lists(st.integers(0, 9), max_size=4),
)
def test_no_other_way_to_reuse_a_request_costs_less(
    places: bytes, costs: FetchCosts, max_gaps: int, bounds: list[int]
) -> None:
    inputs = [Interval(*pair) for pair in pairwise(sorted(bounds))]
    plan = plan_fetch(places, costs, max_gaps, inputs)
    fetched = {index for run in plan for index in range(*run)}
    assert all(places[index] == ON_HOST for index in fetched)
    least = find_least(places, costs, max_gaps, inputs)
    assert find_least(places, costs, max_gaps, inputs, fetched) == pytest.approx(least)


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


def test_a_short_head_is_fetched_with_its_tail() -> None:
    """Computed, its blocks would cost less and its gap more."""
    costs = make_costs(fetch_s=1.05, row_s=1.0)
    assert find_plan("g" * 8 + "h" * 8, costs) == "g" * 8 + "f" * 8
    assert find_plan("g" * 4 + "h" * 12, costs) == "g" * 4 + "h" * 6 + "f" * 6


def test_without_gaps_a_prefix_is_fetched_whole_or_not() -> None:
    costs = make_costs(fetch_s=1.05)
    assert find_plan("h" * 16, costs, max_gaps=0) == "h" * 16
    assert find_plan("h" * 24, costs, max_gaps=0) == "f" * 24
    assert find_plan("h" * 24 + ".hhhh", costs, max_gaps=0) == "f" * 24 + ".hhhh"


def test_what_saves_less_than_the_latency_is_computed() -> None:
    # The last six save 0.05 to 0.55.
    assert find_plan("h" * 16, make_costs(fetch_s=1.05, latency_s=1.7)) == "h" * 10 + "f" * 6
    assert find_plan("h" * 16, make_costs(fetch_s=1.05, latency_s=1.9)) == "h" * 16


def test_more_is_fetched_while_others_stand_still() -> None:
    alone = make_costs(fetch_s=1.05)
    assert find_plan("h" * 16, alone._replace(compute_price=3.0)) == "h" * 3 + "f" * 13
    assert find_plan("h" * 16, alone._replace(compute_price=20.0)) == "f" * 16


@pytest.mark.parametrize(
    ("image", "fetched"),
    [
        # Computed in front of it the gap spares more than the one block that is cheaper to compute costs.
        (Interval(9, 13), Interval(8, 16)),
        (Interval(3, 11), Interval(11, 16)),
        (Interval(9, 16), Interval(8, 16)),
    ],
)
def test_no_gap_ends_within_an_encoder_input(image: Interval, fetched: Interval) -> None:
    assert plan_fetch(read("h" * 16), make_costs(fetch_s=1.05), 8, [image]) == (fetched,)


def test_a_gap_ends_in_front_of_adjacent_inputs() -> None:
    """The block between them has the end of the first and the beginning of the second."""
    assert plan_fetch(read("h" * 16), make_costs(fetch_s=1.05), 8, [Interval(9, 11), Interval(11, 16)]) == (
        Interval(8, 16),
    )
