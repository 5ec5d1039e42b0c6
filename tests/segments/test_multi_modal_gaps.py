"""Requests with audio have their gaps filled, in the text and in what is heard, and reply as a cold engine does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from audio_model import make_audio_model, make_tone
from live_engine import BLOCK, LiveEngine, Reply, assert_same, make_prompt
from transformers import AutoConfig
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

pytestmark = pytest.mark.engine

# What is heard, in tokens: 25 a second.
HEARD = 150
AUDIO = (make_tone(440, 6), make_tone(2000, 6))
# Tokens:   | 100 of text | 150 heard | 200 of text | 150 heard | 100 of text |
# Blocks:   0           3.1         7.8          14.1        18.8         21.9
TEXT = (make_prompt(1, 100), make_prompt(2, 200), make_prompt(3, 100))
# That can be reused: the last token's is computed in any case.
BLOCKS = (sum(map(len, TEXT)) + 2 * HEARD - 1) // BLOCK


class Hearing:
    """An engine that is asked about two tones between three texts."""

    def __init__(self, path: str, **options: Any) -> None:
        self._token = AutoConfig.from_pretrained(path).audio_token_index
        self.engine = LiveEngine(path, limit_mm_per_prompt={"audio": 2}, **options)
        self._keys: list[Any] = []

    def ask(self, audio: Iterable[Any] = AUDIO) -> Reply:
        first, second, third = TEXT
        name = self.engine.add([*first, self._token, *second, self._token, *third], audio=list(audio))
        (request,) = self.engine.scheduler.requests.values()
        self._keys = [make_block_hash_with_group_id(block_hash, 0) for block_hash in request.block_hashes]
        self.engine.finish()
        return self.engine.reply(name)

    def forget(self, blocks: Iterable[int]) -> None:
        """Of the last request."""
        cache = self.engine.pool.cached_block_hash_to_block
        self.engine.pool.evict_blocks({cache.get_one_block(self._keys[index]).block_id for index in blocks})


@pytest.fixture(scope="module")
def path(tiny_model_path: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_audio_model(tiny_model_path, tmp_path_factory.mktemp("audio"))


@pytest.fixture(scope="module")
def expected(path: str) -> Reply:
    cold = Hearing(path, scheduler=None, enable_prefix_caching=False)
    expected = cold.ask()
    assert cold.ask(reversed(AUDIO)).tokens != expected.tokens, "what is heard must count to prove anything"
    return expected


@pytest.fixture(scope="module")
def hearing(path: str, expected: Reply) -> Hearing:  # noqa: ARG001 (made first)
    return Hearing(path)


@pytest.mark.parametrize(
    ("gap", "filled", "remembers"),
    [
        (range(9, 12), range(9, 12), True),  # In the text between the tones.
        (range(1, 3), range(1, 3), True),  # Before both.
        (range(19, 20), range(19, 20), True),  # Behind both.
        (range(2, 9), range(2, 9), True),  # All of the first tone, whose encoding is still there,
        (range(2, 9), range(2, 9), False),  # or not.
        (range(16, 20), range(16, 20), False),  # From the middle of the second tone on.
        (range(9, 16), range(9, 19), False),  # Up to the middle of it: a gap ends at its end.
        (range(4, 6), range(4, 8), False),  # In the middle of the first.
        ((2, 5, 10, 15), (2, *range(5, 8), 10, *range(15, 19)), False),
    ],
)
def test_gaps_of_what_was_heard_are_filled(
    hearing: Hearing, expected: Reply, gap: Iterable[int], filled: Iterable[int], remembers: bool
) -> None:
    hearing.engine.use()
    assert_same(hearing.ask(), expected)
    hearing.forget(gap)
    if not remembers:
        hearing.engine.scheduler.reset_encoder_cache()
    reply = hearing.ask()
    assert_same(reply, expected)
    assert reply.cached == (BLOCKS - len(list(filled))) * BLOCK
    assert hearing.engine.fill_tokens == len(list(filled)) * BLOCK


def test_other_tones_hit_none_of_these_blocks(hearing: Hearing, expected: Reply) -> None:
    hearing.engine.use()
    assert_same(hearing.ask(), expected)
    reply = hearing.ask(reversed(AUDIO))
    assert reply.tokens != expected.tokens
    assert reply.cached == len(TEXT[0]) // BLOCK * BLOCK
