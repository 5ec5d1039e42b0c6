"""`agentcache serve`: vLLM's own server command, with our scheduler in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.logger import configure_logging_from_args

from agentcache.server.arguments import build_arguments
from agentcache.server.plugin_choice import choose_plugins


def serve(
    model: str,
    options: Sequence[str],
    policy: str | None,
    *,
    forced_replies: bool,
    knobs: Mapping[str, Any],
) -> None:
    """Serves until it is stopped. Raises InputError before anything is loaded."""
    args = build_arguments(model, options, policy=policy, forced_replies=forced_replies, knobs=knobs)
    choose_plugins()
    configure_logging_from_args(args)
    ServeSubcommand.cmd(args)
