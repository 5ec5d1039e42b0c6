"""The fit of the link: what rows were made of comes out again, and what no link explains is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.engine.vllm.copiers import CopyOrders
from agentcache.errors import InputError
from agentcache.policy.link_profile import Link, LinkSpeed, assume_link
from agentcache.profile.link_rows import LinkRow, fit_link, predict_s
from agentcache.sim.delays import HostLink, Links

BLOCK_BYTES = 2**21
COUNTS = (1, 16, 64, 256, 1024, 4096)
latencies = st.floats(1e-6, 1e-2)
gb_s = st.floats(1.0, 500.0)


def make_rows(fetch: LinkSpeed, store: LinkSpeed, both: LinkSpeed, noise: float = 0.0) -> list[LinkRow]:
    chance = random.Random(3)

    def time(speed: LinkSpeed, blocks: int) -> float:
        seconds = speed.latency_s + blocks * BLOCK_BYTES / (speed.gb_s * 1e9)
        return seconds * (1 + noise * chance.uniform(-1, 1))

    return [LinkRow(count, BLOCK_BYTES, time(fetch, count), time(store, count), time(both, count)) for count in COUNTS]


def speed(latency_s: float, rate: float) -> LinkSpeed:
    return LinkSpeed(latency_s=latency_s, gb_s=rate)


@given(latencies, gb_s, latencies, gb_s)
def test_latency_and_bandwidth_of_each_way_come_out_again(
    fetch_latency_s: float, fetch_gb_s: float, store_latency_s: float, store_gb_s: float
) -> None:
    fetch, store = speed(fetch_latency_s, fetch_gb_s), speed(store_latency_s, store_gb_s)
    rows = make_rows(fetch, store, fetch)
    speeds = fit_link(rows)
    for found, made in ((speeds.fetch, fetch), (speeds.store, store)):
        assert found.model_dump() == pytest.approx(made.model_dump(), rel=1e-4)
        assert [predict_s(found, row) for row in rows] == pytest.approx(
            [predict_s(made, row) for row in rows], rel=1e-6
        )


def has_ended(links: Links, blocks: int, now_s: float) -> bool:
    """Tell whether the simulated link has copied so many blocks each way by then."""
    metadata = CopyOrders()
    metadata.load_event, metadata.load_gpu_blocks = 1, range(blocks)
    metadata.store_event, metadata.store_gpu_blocks = 2, range(blocks)
    link = HostLink(links, workers=1)
    link.begin(metadata, 0.0, 0.0)
    told = link.end(now_s)
    return told is not None and told.kv_connector_worker_meta.ended.keys() >= {1, 2}


def find_end_s(links: Links, blocks: int) -> float:
    early, late = 0.0, 1e3
    while late - early > 1e-9 * late:
        middle = (early + late) / 2
        early, late = (early, middle) if has_ended(links, blocks, middle) else (middle, late)
    return late


@given(latencies, st.floats(10.0, 60.0), st.floats(0.7, 1.0), st.floats(0.3, 1.0), st.booleans())
def test_with_the_share_the_simulated_link_takes_as_long(
    latency_s: float, fast: float, ratio: float, share: float, stores_faster: bool
) -> None:
    ways = [speed(latency_s, fast * ratio), speed(latency_s, fast)]
    fetch, store = ways if stores_faster else reversed(ways)
    costs = [Link(latency_s, BLOCK_BYTES / (way.gb_s * 1e9)) for way in (fetch, store)]
    links = Links(*costs, share)
    rows = [replace(row, both_s=find_end_s(links, row.blocks)) for row in make_rows(fetch, store, fetch)]
    assert fit_link(rows).both_share == pytest.approx(share, rel=1e-3)


def test_noise_moves_the_fit_a_little() -> None:
    made = speed(0.00006, 42.0)
    speeds = fit_link(make_rows(made, made, speed(0.00008, 26.0), noise=0.03))
    assert speeds.fetch.gb_s == pytest.approx(42.0, rel=0.03)
    assert speeds.fetch.latency_s == pytest.approx(0.00006, rel=0.1)
    assert speeds.both_share == pytest.approx(26 / 42, rel=0.06)


def test_the_measured_table_gives_about_what_is_assumed() -> None:
    """The rows of results/link.jsonl."""
    table = [
        (1, 19.2, 20.0, 13.1),
        (16, 33.3, 32.7, 23.2),
        (64, 34.8, 35.5, 24.9),
        (256, 35.1, 36.0, 25.7),
        (1024, 41.7, 42.8, 26.1),
        (4096, 51.9, 51.8, 27.2),
    ]
    rows = [
        LinkRow(count, BLOCK_BYTES, *(count * BLOCK_BYTES / rate / 1e9 for rate in rates)) for count, *rates in table
    ]
    speeds = fit_link(rows)
    for found, assumed in ((speeds.fetch, assume_link(64e9).fetch), (speeds.store, assume_link(64e9).store)):
        assert found.gb_s == pytest.approx(assumed.gb_s, rel=0.03)
        assert found.latency_s == pytest.approx(assumed.latency_s, rel=0.06)
    assert speeds.both_share == pytest.approx(assume_link(64e9).both_share, rel=0.02)


def test_two_ways_that_do_not_disturb_each_other_keep_all() -> None:
    slow, fast = speed(0.0, 10.0), speed(0.0, 20.0)
    assert fit_link(make_rows(slow, fast, slow)).both_share == pytest.approx(1.0)
    # As noise may have it: both at once sooner than the slower one alone.
    assert fit_link(make_rows(slow, fast, speed(0.0, 30.0))).both_share == 1.0


def test_a_latency_is_never_negative() -> None:
    made = speed(0.0, 40.0)
    rows = [replace(row, fetch_s=row.fetch_s * (1 + row.blocks / 4096)) for row in make_rows(made, made, made)]
    assert fit_link(rows).fetch.latency_s == 0.0


def test_what_no_link_explains_is_refused() -> None:
    rows = make_rows(*[speed(0.001, 40.0)] * 3)
    for few in ([], rows[:1], [rows[0]] * 3):
        with pytest.raises(InputError, match=r"fetch: copies of [01] sizes do not tell latency and bandwidth apart"):
            fit_link(few)
    falling = [replace(row, store_s=1 / row.blocks) for row in rows]
    with pytest.raises(InputError, match="store: copies of more blocks take no longer"):
        fit_link(falling)
