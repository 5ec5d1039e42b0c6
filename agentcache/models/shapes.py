"""Lists the shapes of models, which decide memory and speed, without their weights.

`shapes.json` has each by what its config.json says. Numbers that no cache and no step depends on (rope, norms, dropout)
keep the defaults of the config's class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from agentcache.models.geometry import Geometry, read_geometry


@dataclass(frozen=True)
class Shape:
    """`fields` are of the config's class, named by `model_type`. `source`: whose config.json they are from.

    `note` says where they differ from it, and why. A vocabulary may exceed our tokenizer's: the rest of the table is
    never used.
    """

    architecture: str
    model_type: str
    source: str
    fields: Mapping[str, Any]
    note: str = ""

    # Each scheduler compares its model with all of these, and to read one takes a millisecond.
    @cached_property
    def geometry(self) -> Geometry:
        """Return what decides its speed."""
        return read_geometry(SimpleNamespace(**self.fields))

    @property
    def hidden(self) -> int:
        """The width of the hidden states."""
        return int(self.fields["hidden_size"])

    @property
    def heads(self) -> int:
        """The attention heads of a layer."""
        return int(self.fields["num_attention_heads"])

    @property
    def vocabulary(self) -> int:
        """The rows of the table of embeddings."""
        return int(self.fields["vocab_size"])

    @property
    def max_tokens(self) -> int:
        """The longest context."""
        return int(self.fields["max_position_embeddings"])

    @property
    def options(self) -> tuple[str, ...]:
        """What vLLM needs beside the config, whose class may not ask for the type of its states."""
        state_dtype = self.fields.get("mamba_ssm_dtype")
        return () if state_dtype is None else ("--mamba-ssm-cache-dtype", state_dtype)

    @property
    def tied_embeddings(self) -> bool:
        """Whether the output head is the table of embeddings."""
        return bool(self.fields.get("tie_word_embeddings", False))

    def as_config(self, *, end_of_turn: int, padding: int, dtype: str) -> dict[str, Any]:
        """Return the keyword arguments of the config's class."""
        special = {"bos_token_id": None, "eos_token_id": end_of_turn, "pad_token_id": padding}
        return {"architectures": [self.architecture], **self.fields, **special, "dtype": dtype}


def _read_shapes() -> dict[str, Shape]:
    shapes = json.loads(Path(__file__).with_name("shapes.json").read_text(encoding="utf-8"))
    return {name: Shape(**{**shape, "fields": MappingProxyType(shape["fields"])}) for name, shape in shapes.items()}


_ALL = _read_shapes()
TINY = _ALL["tiny"]
# Models with weights, which run on the CPU, by name.
SMALL = {name: _ALL[name] for name in ("tiny", "demo")}
SHAPES = {name: shape for name, shape in _ALL.items() if name not in SMALL}
