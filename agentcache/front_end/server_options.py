"""Tells the engine what it needs of its server's options: the tool-call parser, and the address of the live report."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.engine.constants import PLUGIN, REPORT_URL_VARIABLE
from agentcache.engine.vllm.base import envs, init_logger
from agentcache.engine.vllm.requests import ToolParserManager

logger = init_logger("vllm.agentcache")

REPORT_PATH = "/agentcache/report"
# Not below our other routes, which need the API key: it asks for that.
LIVE_PATH = "/agentcache-live"


def find_parser(args: Namespace) -> str | None:
    """Find the parser of the server's options; one that a plug-in brings is known to the server alone."""
    name: str | None = getattr(args, "tool_call_parser", None)
    if name is None or name in ToolParserManager.list_registered():
        return name
    logger.warning(
        "The agent runtime cannot read tool calls with %s, which is none of vLLM's own parsers; if one of those can, "
        "name it by agentcache's knob runtime.tool_parser.",
        name,
    )
    return None


def tell_parser(additional_config: Any, args: Namespace) -> dict[str, Any]:
    """Return the engine's additional configuration with the server's parser, unless it has one, or null.

    Raises InputError for a configuration that cannot be.
    """
    given = dict(additional_config or {})
    config = read_config(given)
    if "tool_parser" in config.runtime.model_fields_set:
        return given
    ours = config.model_dump(exclude_unset=True)
    ours["runtime"] = {**ours.get("runtime", {}), "tool_parser": find_parser(args)}
    return {**given, CONFIG_KEY: ours}


def find_report_url(args: Namespace) -> str | None:
    """Find the report's address; None where there is no server, none at a port that is known, or none with our routes.

    `args` are those of any of vLLM's commands.
    """
    given = vars(args)
    # Other commands with an engine have no API servers to count.
    is_server = given.get("api_server_count", 0) != 0 and not given.get("headless")
    if not is_server or given.get("uds") or not given.get("port") or not _has_routes():
        return None
    host = "127.0.0.1" if args.host in (None, "", "0.0.0.0", "::") else args.host
    scheme = "https" if args.ssl_certfile else "http"
    path = LIVE_PATH if args.api_key or os.environ.get("VLLM_API_KEY") else REPORT_PATH
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{args.port}{args.root_path or ''}{path}"


def tell_report_url(url: str | None) -> None:
    """Tell the engine that is started next where the report is; None: nowhere."""
    if url is None:
        os.environ.pop(REPORT_URL_VARIABLE, None)
    else:
        os.environ[REPORT_URL_VARIABLE] = url


def _has_routes() -> bool:
    """Tell whether vLLM's server loads our routes: only where the variable names them, and not in Rust."""
    return PLUGIN in (envs.VLLM_PLUGINS or ()) and not envs.VLLM_USE_RUST_FRONTEND
