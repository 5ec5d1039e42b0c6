"""What converters pass over is counted at each depth, and told in a line."""

from __future__ import annotations

import pytest
from converters.left_out import ForeignRecord, LeftOut

from agentcache.errors import InputError


class Inner(ForeignRecord):
    size: int


class Outer(ForeignRecord):
    inner: list[Inner]
    model: str | None = None


def test_unknown_fields_are_counted_at_each_depth() -> None:
    left_out = LeftOut()
    for text in (
        b'{"inner": [{"size": 1, "x": 5}, {"size": 2, "x": 6, "y": {"size": "no"}}]}',
        b'{"inner": [], "x": []}',
    ):
        left_out.parse(Outer, text, "f.jsonl:1")
    assert [*left_out.describe()] == ["Fields that are not read, passed over: x 3, y 1."]
    assert [*LeftOut().describe()] == []


def test_known_fields_are_still_checked() -> None:
    with pytest.raises(InputError, match=r"f\.jsonl:1: inner\[0\]\.size: Input should be a valid integer"):
        LeftOut().parse(Outer, b'{"inner": [{"size": "1", "x": 5}]}', "f.jsonl:1")
