from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from made_encode import encode

Encode = Callable[[str], Sequence[int]]


@pytest.fixture(scope="session", name="encode")
def stand_in() -> Encode:
    return encode


@pytest.fixture(scope="session")
def real_encode() -> Encode:
    from agentcache.models.tokenizer import train_tokenizer

    tokenizer = train_tokenizer()
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
