"""Declares who is a tenant and what each may take: the knob `tenants` (docs/tenants.md).

The engine knows tenants by the cache salts of their requests. Where keys or a header tell them apart, the API server
puts the digest in front of the salt that the client may have sent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from agentcache.tuning import MOST, KnobGroup

_DIGEST = "sha256:"
_DIGITS = 64
# Stands before the salts of requests that name no tenant, where others have a digest.
_NO_DIGEST = "-" * _DIGITS
# Of a digest that stands for a tenant without a name.
_SHOWN = 19
UNNAMED = "(none)"
OTHERS = "other"


def read_id(text: str) -> str:
    """Return the digest of a salt, key or header's value that the operator gives, or that digest as it is given."""
    return text if re.fullmatch(f"{_DIGEST}[0-9a-f]{{{_DIGITS}}}", text) else make_digest(text)


def make_digest(text: str) -> str:
    """Return what stands for a salt, a key or a header's value."""
    return _DIGEST + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Share(KnobGroup):
    """What a tenant may take: `weight` against others', and at most `limit` jobs under way, None for any number."""

    weight: float = Field(default=1.0, ge=1e-6, le=MOST, allow_inf_nan=False)
    limit: int | None = Field(default=None, ge=1, le=MOST)


class Tenant(Share):
    """One whom the operator names. `id` is its salt, key or header, or the digest of it; None: as its name."""

    id: Annotated[str, AfterValidator(read_id)] | None = None


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Tenants(KnobGroup):
    """`by` tells tenants apart: `cache_salt`, `api_key`, or `header:NAME`. Those not `known` have a share each too."""

    by: str = Field(default="cache_salt", pattern=r"^(cache_salt|api_key|header:[!#$%&'*+.^_`|~0-9A-Za-z-]+)$")
    known: Mapping[Name, Tenant] = Field(default={}, max_length=10_000)
    others: Share = Share()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if OTHERS in self.known:
            raise ValueError(f"known.{OTHERS}: stands for those that have no name in /metrics; give another")
        seen: dict[str, str] = {}
        for name, digest in self._list_ids():
            if (other := seen.setdefault(digest, name)) != name:
                raise ValueError(f"known.{name}.id: is that of {other} as well; give each tenant one of its own")
        return self

    def _list_ids(self) -> list[tuple[str, str]]:
        return [(name, each.id or make_digest(name)) for name, each in self.known.items()]

    @cached_property
    def _shares(self) -> dict[str, tuple[str, Share]]:
        return {digest: (name, self.known[name]) for name, digest in self._list_ids()}

    def knows(self, tenant: str) -> bool:
        """Tell whether the operator has named the tenant with this salt, key or header."""
        return make_digest(tenant) in self._shares

    def find_share(self, digest: str) -> tuple[str, Share]:
        """Find the name and the share of the tenant that the digest stands for."""
        return self._shares.get(digest) or (digest[:_SHOWN] or UNNAMED, self.others)

    def find_id(self, salt: str | None) -> str:
        """Find the digest of the tenant whose request has this salt in the engine; empty for none."""
        if salt is None:
            return ""
        if self.by == "cache_salt":
            return make_digest(salt)
        return "" if salt.startswith(_NO_DIGEST) else _DIGEST + salt[:_DIGITS]

    def make_salt(self, tenant: str | None, salt: str | None) -> str | None:
        """Make the salt of a request for the engine, of what its key or header says and the client's own salt."""
        if self.by == "cache_salt":
            return salt
        if tenant is None:
            return None if salt is None else _NO_DIGEST + salt
        return make_digest(tenant).removeprefix(_DIGEST) + (salt or "")
