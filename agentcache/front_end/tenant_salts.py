"""Tells tenants apart by their keys or a header, where the operator says so: the engine knows them by cache salts."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial

from starlette.datastructures import Headers

from agentcache.front_end.client_sessions import Salt, read_header
from agentcache.tenants import Tenants

# Makes the salt for the engine of the client's own; as it is where no request of our API server is in progress.
salting: ContextVar[Salt] = ContextVar("agentcache_salting", default=lambda salt: salt)


def find_tenant(headers: Headers, tenants: Tenants) -> str | None:
    """Find the key or the header's value by which a request names its tenant; None where it names none."""
    kind, _, name = tenants.by.partition(":")
    match kind:
        case "api_key":
            scheme, _, key = headers.get("Authorization", "").partition(" ")
            return key.strip() if scheme.lower() == "bearer" and key.strip() else headers.get("x-api-key") or None
        case "header":
            return read_header(headers.get(name, "").strip()) or None
        case _:
            return None


def find_salting(headers: Headers, tenants: Tenants | None) -> Salt:
    """Find what makes the salts of a request's tenant."""
    return salting.get() if tenants is None else partial(tenants.make_salt, find_tenant(headers, tenants))
