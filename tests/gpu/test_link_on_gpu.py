"""The link as it is measured where there is one."""

from __future__ import annotations

from agentcache.profile.link_process import LinkLayout, run_link_process
from agentcache.profile.link_rows import fit_link


def test_copies_take_time_in_proportion_to_their_bytes() -> None:
    rows = run_link_process(LinkLayout(pieces=32, piece_bytes=65_536))
    assert len(rows) >= 4
    for row in rows[-2:]:
        # No link between a GPU and a host is faster, and what is not pinned is slower.
        assert all(5 < row.gb_s(seconds) < 1000 for seconds in (row.fetch_s, row.store_s))
        assert row.both_s > 0.9 * max(row.fetch_s, row.store_s)
    speeds = fit_link(rows)
    assert speeds.fetch.latency_s < 0.01
    assert 0.3 < speeds.both_share <= 1
