from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentcache.policy.replicas.chain import Chain, KnownBlocks

BLOCK = 4
# Few tokens, so that prompts share beginnings.
PROMPTS = st.lists(st.lists(st.integers(0, 1), max_size=40), max_size=30)


def hash_prompt(tokens: list[int]) -> list[bytes]:
    return Chain(tokens, BLOCK).hashes


def count_slowly(known: KnownBlocks, hashes: list[bytes]) -> int:
    """One block after the other, each as a chain of its own that begins with it."""
    return next((i for i, block in enumerate(hashes) if not known.count_hits([block])), len(hashes))


@given(PROMPTS, st.integers(1, 12), st.lists(st.integers(0, 1), max_size=40))
def test_hits_are_those_of_a_look_at_every_block(prompts: list[list[int]], capacity: int, asked: list[int]) -> None:
    known = KnownBlocks(capacity)
    for prompt in prompts:
        known.use(hash_prompt(prompt))
        assert len(known) <= capacity
        assert known.count_hits(hash_prompt(prompt)) == min(capacity, len(hash_prompt(prompt)))
    assert known.count_hits(hash_prompt(asked)) == count_slowly(known, hash_prompt(asked))


def test_the_end_of_the_oldest_chain_leaves_first() -> None:
    known = KnownBlocks(4)
    old, new = hash_prompt([0] * 12), hash_prompt([1] * 8)
    known.use(old)
    known.use(new)
    assert (known.count_hits(old), known.count_hits(new)) == (2, 2)
