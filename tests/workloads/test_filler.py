from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import pick_size

from workloads.filler import write_filler

TOKENIZERS = {
    "words": lambda text: re.findall(r"\w+|[^\w\s]", text),
    "pieces": lambda text: re.findall(r" ?[A-Za-z0-9]{1,4}|.", text),
    "characters": list,
}


@settings(max_examples=pick_size(20, 60))
@given(tokens=st.integers(1, 3_000), seed=st.integers(0, 2**32), encode=st.sampled_from(list(TOKENIZERS.values())))
def test_length_is_within_tolerance_and_text_is_plain(tokens, seed, encode):
    text = write_filler(tokens, encode, np.random.default_rng(seed))
    assert abs(len(encode(text)) - tokens) <= max(2, tokens // 100)
    assert re.fullmatch(r"[A-Za-z .]+", text)


@settings(max_examples=pick_size(10, 30))
@given(tokens=st.integers(0, 500), seed=st.integers(0, 2**32))
def test_what_it_is_wrapped_in_counts_towards_the_length(tokens, seed):
    encode = TOKENIZERS["pieces"]

    def wrap(text: str) -> str:
        return json.dumps({"content": text})

    text = write_filler(tokens, encode, np.random.default_rng(seed), wrap)
    bare = len(encode(wrap("")))
    assert abs(len(encode(wrap(text))) - max(tokens, bare)) <= max(2, tokens // 100)


@pytest.mark.parametrize("tokens", [0, -3])
def test_no_tokens_give_no_text_without_asking_the_tokenizer(tokens):
    assert write_filler(tokens, lambda _: pytest.fail("encode was called"), np.random.default_rng(0)) == ""


def test_a_long_text_takes_a_handful_of_encode_calls(real_encode):
    calls = []

    def encode(text: str):
        calls.append(text)
        return real_encode(text)

    text = write_filler(18_000, encode, np.random.default_rng(5))
    assert abs(len(real_encode(text)) - 18_000) <= 180
    assert len(calls) <= 5


def test_the_tokenizer_changes_only_where_the_text_stops():
    by_words, by_characters = (
        write_filler(200, TOKENIZERS[name], np.random.default_rng(11)) for name in ("words", "characters")
    )
    assert by_words.startswith(by_characters.rstrip("."))


def test_seeds_give_different_texts():
    first, second = (write_filler(50, TOKENIZERS["words"], np.random.default_rng(seed)) for seed in (1, 2))
    assert first != second


def test_a_tokenizer_that_never_counts_enough_still_ends():
    assert isinstance(write_filler(100, lambda _: [1], np.random.default_rng(0)), str)
