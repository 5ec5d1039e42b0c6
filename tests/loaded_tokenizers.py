"""A tokenizer is loaded once for all simulations: to load it takes as long as to run many of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

ONCE = SimpleNamespace(from_pretrained=cache(AutoTokenizer.from_pretrained))


@contextmanager
def load_tokenizers_once() -> Iterator[None]:
    """For models whose folders no test changes, as those that are simulated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentcache.jobs.tokenizer.AutoTokenizer", ONCE)
        yield
