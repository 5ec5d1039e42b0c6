"""Bounds the numbers in files, which are multiplied, added up, and allocated."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# Of a prompt, or a reply: no model's context is longer.
MAX_TOKENS = 10_000_000
# Of the cache of one engine: no host has memory for more.
MAX_CACHE_TOKENS = 2**28
# As many pass from one block's first number to the next one's, where blocks are written as tokens.
MAX_BLOCK_TOKENS = 2**20
# 317 years: also what a clock shows that counts from 1970.
MAX_S = 10**10

# A number or an id, as 64 bits hold it.
Count = Annotated[int, Field(ge=0, lt=2**63)]
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
SomeTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
BlockTokens = Annotated[int, Field(ge=1, le=MAX_BLOCK_TOKENS)]
Seconds = Annotated[float, Field(ge=0, le=MAX_S, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, le=MAX_S * 10**3, allow_inf_nan=False)]
