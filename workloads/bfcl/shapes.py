"""Recorded shapes of web_search jobs: tools per reply and sizes in tokens. `shapes.json` says where from."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_SHAPES = Path(__file__).with_name("shapes.json")

Tokens = Annotated[int, Field(ge=1)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Step(_Record):
    """A reply that called tools. `tools` has a letter per call, "s" search and "f" fetch; results are of all calls."""

    tools: str = Field(pattern="^[sf]+$")
    output_tokens: Tokens
    result_tokens: Tokens


class Shape(_Record):
    """One recorded job: its steps with tool calls, then an answer of `answer_tokens`."""

    model: str
    file: str
    id: str
    steps: tuple[Step, ...] = Field(min_length=1)
    answer_tokens: Tokens


class ShapeFile(_Record):
    """`shapes.json`: the shapes and, in words, their source, licence and meaning."""

    what: str
    source: str
    licence: str
    how: str
    left_out: str
    shapes: tuple[Shape, ...] = Field(min_length=1)


@cache
def read_shapes() -> tuple[Shape, ...]:
    """Read the recorded sizes that come with the package."""
    return ShapeFile.model_validate_json(_SHAPES.read_text(encoding="utf-8")).shapes
