from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_objects import list_kept
from made_simulation import make_engine
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import BlockHash, get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from agentcache.sim.known_hashes import KnownHashes, MadeHashes, count_same

BLOCK = 4


class Counted:
    """vLLM's hasher; `hashed` counts blocks."""

    def __init__(self) -> None:
        init_none_hash(sha256)
        self._hash_blocks = get_request_block_hasher(BLOCK, sha256)
        self.hashed = 0

    def __call__(self, request: Request) -> list[BlockHash]:
        found = self._hash_blocks(request)
        self.hashed += len(found)
        return found


def make_request(prompt: Sequence[int], hasher: KnownHashes, session: str | None = "s", name: str = "r") -> Request:
    params = SamplingParams(max_tokens=100)
    return Request(name, list(prompt), params, None, block_hasher=hasher.hash_blocks, session_id=session)


def hash_alone(tokens: Sequence[int]) -> list[BlockHash]:
    return make_request(tokens, KnownHashes(Counted(), BLOCK)).block_hashes


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=40)


@given(st.lists(st.tuples(TOKENS, TOKENS, st.sampled_from("ab")), min_size=1, max_size=6))
def test_hashes_are_those_of_the_request_alone(turns: list[tuple[list[int], list[int], str]]) -> None:
    hasher = KnownHashes(Counted(), BLOCK)
    for prompt, reply, session in turns:
        request = make_request(prompt, hasher, session)
        hasher.remember(request)
        request.append_output_token_ids(reply)
        assert request.block_hashes == hash_alone([*prompt, *reply])


def test_only_what_a_turn_adds_is_hashed() -> None:
    counted = Counted()
    hasher = KnownHashes(counted, BLOCK)
    first = make_request(range(40), hasher)
    hasher.remember(first)
    first.append_output_token_ids([40, 41, 42, 43])
    assert counted.hashed == 11
    make_request(range(52), hasher)
    assert counted.hashed == 13
    make_request(range(52), hasher, session=None)
    assert counted.hashed == 26
    hasher.forget("s")
    make_request(range(52), hasher)
    assert counted.hashed == 39


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=6))
def test_nothing_is_hashed_again_in_another_simulation(turns: list[tuple[list[int], list[int]]]) -> None:
    kept: dict[str, MadeHashes] = {}
    seen, hashed = [], []
    for _ in range(2):
        counted = Counted()
        hasher = KnownHashes(counted, BLOCK, kept)
        requests = []
        for number, (prompt, reply) in enumerate(turns):
            request = make_request(prompt, hasher, name=f"r{number}")
            hasher.remember(request)
            for token in reply:
                request.append_output_token_ids(token)
            hasher.ended(request.request_id)
            requests.append(request)
        seen.append([request.block_hashes for request in requests])
        hashed.append(counted.hashed)
    assert seen == [[hash_alone([*prompt, *reply]) for prompt, reply in turns]] * 2
    assert hashed[1] == 0


ENGINES = st.lists(st.integers(0, 1), min_size=6, max_size=6)


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=6), st.lists(ENGINES, min_size=2, max_size=3))
def test_a_session_may_move_between_engines(turns: list[tuple[list[int], list[int]]], runs: list[list[int]]) -> None:
    kept: dict[str, MadeHashes] = {}
    for engines in runs:
        hashers = [KnownHashes(Counted(), BLOCK, kept) for _ in range(2)]
        for number, ((prompt, reply), engine) in enumerate(zip(turns, engines, strict=False)):
            request = make_request(prompt, hashers[engine], name=f"r{number}")
            hashers[engine].remember(request)
            for token in reply:
                request.append_output_token_ids(token)
            hashers[engine].ended(request.request_id)
            assert request.block_hashes == hash_alone([*prompt, *reply])


@pytest.mark.parametrize("place", [0, 1023, 1024, 2500, 3000])
def test_the_first_difference_is_found(place: int) -> None:
    one = list(range(3000))
    assert count_same(one, [*one[:place], -1, *one[place + 1 :]]) == place
    assert count_same(one, one[:place]) == place


def test_an_engine_forgets_sessions_that_are_over(tiny_model_path: str) -> None:
    engine = make_engine(tiny_model_path)
    engine.add("first", list(range(64)), [1], session_id="s")
    (known,) = list_kept(engine, KnownHashes)
    assert "s" in list_kept(known, str)
    engine.end_session("s")
    assert "s" not in list_kept(known, str)
