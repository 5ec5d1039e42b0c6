from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_job import CharacterTokenizer
from made_recordings import make_session, write_sessions

from agentcache.errors import InputError
from agentcache.jobs.lanes import ClosedLoop, InfiniteCache
from agentcache.jobs.loader import load_run
from agentcache.jobs.settings import JobSettings
from tool_runtime.agent.job import Context


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """Three sessions of 12, 14 and 16 requests, each a block longer than the last."""
    turns = [[tuple(range(1, 3 + turn)) for turn in range(12 + 2 * number)] for number in range(3)]
    made = (make_session(number, *prompts) for number, prompts in enumerate(turns))
    return write_sessions(tmp_path / "sessions.jsonl", made)


def load(sessions: Path, **options: object) -> ClosedLoop:
    settings = JobSettings(workload=f"recording:{sessions}", **{"concurrency": 2, **options})  # type: ignore[arg-type]
    settings.check()
    loop = load_run(settings, CharacterTokenizer()).loop
    assert loop is not None
    return loop


def test_lanes_begin_midway_and_go_on_with_whole_sessions(sessions: Path) -> None:
    lanes = load(sessions).begin()
    first, following = lanes.start(), [lanes.follow() for _ in range(4)]
    assert len(first) == 2
    assert len({recorded.job.id for recorded in (*first, *following)}) == 6
    assert all(len(recorded.job.turns) in (12, 14, 16) for recorded in following)
    assert all(len(recorded.job.turns) < 13 for recorded in first)


def test_every_policy_gets_the_same_sessions(sessions: Path) -> None:
    loop = load(sessions)
    first, second = loop.begin(), loop.begin()
    assert first.start() == second.start()
    assert [first.follow() for _ in range(5)] == [second.follow() for _ in range(5)]


def test_measuring_begins_when_the_last_lane_is_warm(sessions: Path) -> None:
    lanes = load(sessions, duration_s=60.0, warm_up=1).begin()
    one, other = (recorded.job.id for recorded in lanes.start())
    for now_s, session in ((1.0, one), (2.0, one), (3.0, one), (4.0, other)):
        lanes.request_ended(session, now_s)
        assert lanes.window_s is None
        assert not lanes.is_measured(1000.0)
    lanes.request_ended(other, 5.0)
    assert lanes.window_s == (5.0, 65.0)
    lanes.request_ended(other, 6.0)
    assert lanes.window_s == (5.0, 65.0)
    assert not lanes.is_measured(65.0)
    assert lanes.is_measured(65.1)


def test_a_lane_that_fails_does_not_hold_up_the_others(sessions: Path) -> None:
    lanes = load(sessions, duration_s=60.0).begin()
    for now_s, recorded in enumerate(lanes.start()):
        lanes.session_ended(recorded.job.id, float(now_s))
    assert lanes.window_s == (1.0, 61.0)


def test_waits_are_capped_at_five_minutes_in_a_loop(tmp_path: Path) -> None:
    path = write_sessions(tmp_path / "r.jsonl", [make_session(0, (1,), (1, 2), wait_s=900.0)])
    (recorded,) = load(path).sessions
    assert recorded.job.turns[0].results[0].duration_s == 300.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rate": 2.0}, "--rate: only for bfcl"),
        ({"concurrency": None, "duration_s": 9.0}, "--duration: only with --concurrency"),
        ({"concurrency": None, "warm_up": 9}, "--warm-up: only with --concurrency"),
        ({"concurrency": 0}, "--concurrency 0: give at least 1"),
        ({"duration_s": 0.0}, "--duration 0: give a number above 0, the seconds to measure"),
        ({"warm_up": -1}, "--warm-up -1: give at least 0"),
        ({"concurrency": None, "rollout": 4}, "--rollout: only with --concurrency"),
        ({"rollout": 0}, "--rollout 0: give at least 1"),
        ({"workload": "bfcl"}, "--concurrency: only for recording"),
    ],
)
def test_options_of_a_loop_are_checked(sessions: Path, options: dict[str, object], text: str) -> None:
    with pytest.raises(InputError) as caught:
        JobSettings(**{"workload": f"recording:{sessions}", "concurrency": 2, **options}).check()  # type: ignore[arg-type]
    assert str(caught.value) == text


prompts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=6)


@given(prompts, st.integers(1, 16))
def test_infinite_cache_serves_known_prefixes(made: list[list[int]], tail: int) -> None:
    cache, known = InfiniteCache(), set()
    for prompt in made:
        # Ids of a recording are of chains, so an id stands for all that is before it.
        chain = tuple(hash(tuple(prompt[: end + 1])) for end in range(len(prompt)))
        tokens = (len(chain) - 1) * 16 + tail
        full = tokens // 16
        expected = 0
        while expected < full and chain[expected] in known:
            expected += 1
        assert cache.count_hits(Context(chain, 16, tokens, 1)) == min(expected * 16, tokens - 1)
        known.update(chain[:full])


def test_an_interrupted_loop_was_measured_until_then(sessions: Path) -> None:
    lanes = load(sessions, duration_s=60.0, warm_up=1).begin()
    sessions = [recorded.job.id for recorded in lanes.start()]
    lanes.break_off(1.0)
    assert lanes.window_s is None
    for session in sessions:
        lanes.request_ended(session, 4.0)
        lanes.request_ended(session, 5.0)
    lanes.break_off(100.0)
    assert lanes.window_s == (5.0, 65.0)
    lanes.break_off(25.0)
    assert lanes.window_s == (5.0, 25.0)
    # Nothing was measured.
    lanes.break_off(5.0)
    assert lanes.window_s is None
