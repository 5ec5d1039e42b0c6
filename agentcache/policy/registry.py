"""The policies by the names that users type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentcache.errors import InputError
from agentcache.policy.evictor import Evictor
from agentcache.policy.lru import LruEvictor


@dataclass(frozen=True, slots=True)
class Policy:
    """How the engine is to behave. `make_evictor` is None where vLLM's own free list stays."""

    name: str
    summary: str
    make_evictor: Callable[[], Evictor] | None


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("vllm", "stock vLLM, nothing replaced", make_evictor=None),
        Policy("lru", "our block queue, least recently used first; must equal vllm", make_evictor=LruEvictor),
    )
}
DEFAULT_POLICY = "lru"


def find_policy(name: str) -> Policy:
    """Raises InputError for a name that no policy has."""
    try:
        return POLICIES[name]
    except KeyError:
        raise InputError(f"--policy {name}: unknown; choose from {', '.join(POLICIES)}") from None
