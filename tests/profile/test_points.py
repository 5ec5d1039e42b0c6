from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentcache.profile.points import MAX_L1, BatchPoint, Limits, PointSource, PrefillPoint

limits = st.builds(
    Limits,
    max_tokens=st.sampled_from([1024, 8192, 65_536]),
    step_tokens=st.sampled_from([512, 2048, 16_384]),
    batch_tokens=st.sampled_from([4096, 262_144]),
    max_seqs=st.sampled_from([4, 128, 1024]),
    block_size=st.sampled_from([16, 32, 128]),
)


@given(limits=limits, seed=st.integers(0, 1000))
def test_every_point_can_be_measured(limits: Limits, seed: int) -> None:
    for point in PointSource(limits, seed).make(24):
        if isinstance(point, PrefillPoint):
            assert point.l1 + point.q1 + point.l2 + point.q2 < limits.max_tokens
            assert point.l1 <= MAX_L1
            assert (point.l2 > 0) == (point.q2 > 0)
            assert max(point.q1, point.q2) > 1
            assert 1 not in (point.q1, point.q2)
            cached_ends = (point.l1, point.l1 + point.q1, point.l2) if point.l2 else (point.l1,)
            assert all(end % limits.block_size == 0 for end in cached_ends)
        else:
            assert 1 <= point.decodes <= limits.max_seqs - 2
            assert point.decodes * point.context <= limits.batch_tokens
            for query, context in point.prefills:
                # The decodes and the prefill must fit into one step.
                assert 2 <= query <= limits.step_tokens - point.decodes
                assert query + context < limits.max_tokens
                assert context % limits.block_size == 0


def test_first_points_have_every_kind_and_a_seed_repeats_them() -> None:
    bounds = Limits(max_tokens=8192, step_tokens=2048, batch_tokens=32_768, max_seqs=128, block_size=32)
    points = PointSource(bounds, 3).make(60)
    assert points == PointSource(bounds, 3).make(60) != PointSource(bounds, 4).make(60)
    prefills = [point for point in points[:6] if isinstance(point, PrefillPoint)]
    assert {(point.q1 > 0, point.l2 > 0) for point in prefills} == {(True, False), (False, True), (True, True)}
    assert sum(isinstance(point, BatchPoint) for point in points) == 10
