from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id
from vllm.v1.request import Request

from agentcache.engine.cached_blocks import BlockKeys
from agentcache.sim.quick_pool import follow


def make_request(chain: str) -> Request:
    request = Request("r", [0], SamplingParams(), None)
    extend(request, chain)
    return request


def extend(request: Request, chain: str) -> None:
    """Hashes stand for all that is before them."""
    for letter in chain:
        before = request.block_hashes[-1] if request.block_hashes else b""
        request.block_hashes.append(BlockHash(before + letter.encode()))


def key_one_by_one(request: Request, groups: int) -> list[list[bytes]]:
    return [[make_block_hash_with_group_id(each, group) for each in request.block_hashes] for group in range(groups)]


CHAIN = st.text("ab", max_size=8)


@given(groups=st.integers(1, 3), changes=st.lists(st.tuples(st.integers(0, 9), CHAIN), max_size=6))
def test_keys_are_those_of_the_hashes_whatever_becomes_of_them(groups: int, changes: list[tuple[int, str]]) -> None:
    keys, request = BlockKeys(groups), make_request("")
    for kept, chain in changes:
        del request.block_hashes[kept:]
        extend(request, chain)
        assert keys.find(request) == key_one_by_one(request, groups)


@given(CHAIN, CHAIN, CHAIN, st.integers(1, 3))
def test_a_request_takes_over_what_it_shares(common: str, one: str, other: str, groups: int) -> None:
    keys, earlier, request = BlockKeys(groups), make_request(common + one), make_request(common + other)
    follow(keys, request, earlier)
    assert keys.find(request) == key_one_by_one(request, groups)
    known = keys.find(earlier)
    later = make_request(common + other)
    follow(keys, later, earlier)
    found = keys.find(later)
    assert found == key_one_by_one(later, groups)
    for taken, mine in zip(known, found, strict=True):
        assert all(taken[index] is mine[index] for index in range(len(common)))
    assert known == key_one_by_one(earlier, groups)


def test_keys_go_with_their_request() -> None:
    keys, request = BlockKeys(), make_request("ab")
    keys.find(request)
    del request
    assert not keys.known
