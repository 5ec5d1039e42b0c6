"""Waits of a closed loop's lanes, in real time: bounds are far from what a busy machine adds."""

from __future__ import annotations

import asyncio
import time

from agentcache.replay.lane_waits import LaneWaits

HOUR_S = 3600.0


def make_waits(lanes: int) -> LaneWaits:
    return LaneWaits(lanes, time.monotonic, 0.05)


def measure(*lanes: list[tuple[str, float]], waits: LaneWaits) -> list[float]:
    """Wait in each lane for one after another, all lanes at once, and return when each lane is through."""

    async def go(lane: list[tuple[str, float]]) -> float:
        for session, seconds in lane:
            await waits.of(session)(seconds)
        return time.monotonic() - began

    async def run() -> list[float]:
        return await asyncio.wait_for(asyncio.gather(*map(go, lanes)), 30)

    began = time.monotonic()
    return asyncio.run(run())


def test_where_all_lanes_wait_the_first_is_soon_over() -> None:
    first, second = measure([("a", HOUR_S)], [("b", HOUR_S + 0.2)], waits=make_waits(2))
    assert 0.05 <= first < 5
    # All are brought forward alike.
    assert 0.25 <= second < 5


def test_while_a_request_is_under_way_others_wait_on() -> None:
    (waited,) = measure([("a", 0.5)], waits=make_waits(2))
    assert waited >= 0.5


def test_waits_that_are_short_stay_as_they_are() -> None:
    first, second = measure([("a", 0.02)], [("b", 0.3)], waits=make_waits(2))
    assert first >= 0.02
    assert second >= 0.3


def test_tools_of_one_turn_are_one_lane() -> None:
    waits = make_waits(2)
    first, second = measure([("a", 0.4)], [("a", 0.5)], waits=waits)
    assert first >= 0.4
    assert second >= 0.5
    # The other lane waits, too: then both tools are brought forward, one after the other.
    short, long, _ = measure([("a", HOUR_S)], [("a", 2 * HOUR_S)], [("b", 2 * HOUR_S + 0.2)], waits=make_waits(2))
    assert short < long < 5


def test_a_lane_that_has_ended_is_not_waited_for() -> None:
    waits = make_waits(2)

    async def run() -> None:
        waiting = asyncio.create_task(waits.of("a")(HOUR_S))
        await asyncio.sleep(0)
        waits.count(-1)
        await asyncio.wait_for(waiting, 5)

    asyncio.run(run())
