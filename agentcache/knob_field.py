"""How a knob or a constant is declared: with what it means, where its default comes from, and its limits."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

# No value is of use beyond these limits, and within them the arithmetic of every policy works.
MOST = 10**9
COUNT = {"ge": 1, "le": MOST}
POSITIVE = {"ge": 1e-6, "le": MOST}
NOT_NEGATIVE = {"ge": 0, "le": MOST}
SHARE = {"ge": 0, "le": 1}


class KnobGroup(BaseModel):
    """Unknown keys are errors, so that a misspelt knob cannot pass as its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def knob_field(default: object, description: str, origin: str, **limits: Any) -> Any:
    """Declare a field; `limits` are pydantic's. agentcache/config.py says what may stand in an origin."""
    return Field(default=default, description=description, json_schema_extra={"origin": origin}, **limits)
