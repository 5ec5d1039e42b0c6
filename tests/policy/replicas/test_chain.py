from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.replicas.chain import Chain

TOKENS = st.lists(st.integers(0, 2**31), max_size=50)


@given(TOKENS, TOKENS, st.integers(1, 9))
def test_a_chain_grows_as_if_hashed_at_once(head: list[int], tail: list[int], block: int) -> None:
    grown = Chain(head, block)
    grown.extend(tail)
    whole = Chain([*head, *tail], block)
    assert (grown.hashes, grown.tokens) == (whole.hashes, len(head) + len(tail))
    assert len(whole.hashes) == whole.tokens // block


@given(TOKENS, TOKENS, st.integers(1, 9))
def test_chains_share_the_blocks_of_equal_beginnings(one: list[int], other: list[int], block: int) -> None:
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
    hashes = zip(Chain(one, block).hashes, Chain(other, block).hashes, strict=False)
    assert [a == b for a, b in hashes] == [(i + 1) * block <= same for i in range(min(len(one), len(other)) // block)]


def test_chains_of_another_origin_share_nothing() -> None:
    assert not {*Chain([1] * 8, 4, "one").hashes} & {*Chain([1] * 8, 4, "two").hashes}
