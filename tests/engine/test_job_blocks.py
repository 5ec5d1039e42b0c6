"""Blocks of jobs, against sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentcache.engine.jobs.job_blocks import JobBlocks

JOBS = st.integers(1, 5)
HASHES = st.lists(st.binary(min_size=1, max_size=1), max_size=6)


@given(st.lists(st.tuples(JOBS, st.none() | HASHES), max_size=40))
def test_what_one_job_alone_has_used_is_told(calls: list[tuple[int, list[bytes] | None]]) -> None:
    blocks = JobBlocks(1000)
    used: dict[int, set[bytes]] = {}
    for job, hashes in calls:
        if hashes is not None:
            blocks.note(job, hashes)
            used.setdefault(job, set()).update(hashes)
        else:
            mine = used.pop(job, set())
            assert sorted(blocks.end(job)) == sorted(mine.difference(*used.values()))
        blocks.check_integrity()


@given(st.lists(st.tuples(JOBS, HASHES), max_size=40))
def test_no_more_is_remembered_than_caches_may_hold(calls: list[tuple[int, list[bytes]]]) -> None:
    blocks = JobBlocks(2)
    for job, hashes in calls:
        blocks.note(job, hashes)
        blocks.check_integrity()
        assert sum(map(len, blocks._used.values())) <= max(8, len(blocks._used[job]))
        assert set(hashes) <= blocks._used[job].keys()


def test_the_job_that_asked_longest_ago_is_forgotten() -> None:
    blocks = JobBlocks(1)
    blocks.note(1, [b"a", b"b"])
    blocks.note(2, [b"b", b"c"])
    blocks.note(1, [b"a"])
    blocks.note(3, [b"d"])
    assert blocks.end(2) == []
    assert blocks.end(1) == [b"a", b"b"]
    assert blocks.end(3) == [b"d"]
