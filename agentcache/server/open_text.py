"""Tells where anybody who reaches the server can read text of its prompts."""

from __future__ import annotations

import os
from argparse import Namespace
from ipaddress import ip_address

from agentcache.config import AgentCacheConfig
from agentcache.policy.registry import find_policy


def describe_open_text(config: AgentCacheConfig, args: Namespace) -> str | None:
    """Say that text is open, and what closes it; None where none is shown, or a key or the address keeps it closed.

    `args` are those of vLLM's server.
    """
    if not config.runtime.show_text or find_policy(config.policy).runtime is None:
        return None
    # As vLLM takes them: an empty --api-key is none, and hides the variable.
    has_key = any(args.api_key or [os.environ.get("VLLM_API_KEY")])
    if has_key or args.uds or _is_loopback(args.host):
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
