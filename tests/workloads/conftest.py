from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

Encode = Callable[[str], Sequence[int]]


@pytest.fixture(scope="session")
def encode() -> Encode:
    """A stand-in for a tokenizer: a token per piece of at most four letters and per other character."""
    return lambda text: [len(piece) for piece in re.findall(r" ?[A-Za-z0-9]{1,4}|.", text, flags=re.DOTALL)]


@pytest.fixture(scope="session")
def real_encode() -> Encode:
    from agentcache.models.tokenizer import train_tokenizer

    tokenizer = train_tokenizer()
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
