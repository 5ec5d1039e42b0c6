"""Guards our routes: where the server has API keys a request needs one; elsewhere all may ask."""

from __future__ import annotations

import os
from argparse import Namespace
from ipaddress import ip_address

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from agentcache.config import AgentCacheConfig
from agentcache.engine.vllm.serving import authenticate
from agentcache.policy.registry import find_policy
from agentcache.server.routes import PREFIX

# With the slash: the page that asks for the key is beside these paths.
GUARDED = f"{PREFIX}/"


class KeyGuard(authenticate.AuthenticationMiddleware):
    """Asks for the API key below our routes, as vLLM's own middleware does below vLLM's."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        # A browser's question which methods it may use has no key.
        is_asked = scope["type"] == "http" and scope["method"] != "OPTIONS"
        if is_asked and f"{find_path(scope)}/".startswith(GUARDED) and not self.verify_token(Headers(scope=scope)):
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def guard_routes(app: FastAPI, args: Namespace) -> None:
    """Ask for one of the keys that the server's options name, if there are any."""
    if keys := _find_keys(args):
        app.add_middleware(KeyGuard, tokens=keys)


def needs_key(scope: Scope) -> bool:
    """Tell whether vLLM asks for the key where there is one: on other paths anybody could end a job."""
    return scope["method"] == "POST" and find_path(scope).startswith(tuple(authenticate.GUARDED_PREFIX))


def find_path(scope: Scope) -> str:
    """Find the path of a request, without what a proxy has put in front."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _find_keys(args: Namespace) -> list[str]:
    """Find the keys as vLLM takes them: an empty --api-key is none, and hides the variable."""
    return [key for key in args.api_key or [os.environ.get("VLLM_API_KEY")] if key]


def describe_open_text(config: AgentCacheConfig, args: Namespace) -> str | None:
    """Say that text is open, and what closes it; None where none is shown, or a key or the address keeps it closed.

    `args` are those of vLLM's server.
    """
    if not config.runtime.show_text or find_policy(config.policy).runtime is None:
        return None
    if _find_keys(args) or args.uds or _is_loopback(args.host):
        return None
    return (
        "agentcache: runtime.show_text is on and there is no API key: all who reach this server can read text of all "
        "prompts below /agentcache/. Give --api-key, or --host 127.0.0.1."
    )


def _is_loopback(host: str | None) -> bool:
    """Tell whether only this machine reaches the address; without one vLLM listens on all."""
    try:
        return host == "localhost" or ip_address(host or "0.0.0.0").is_loopback
    except ValueError:
        # A name: which addresses it stands for is not known here.
        return False
