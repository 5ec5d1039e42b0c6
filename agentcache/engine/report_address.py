"""Finds the address of the live report, by the options of a server."""

from __future__ import annotations

import os
from argparse import Namespace

from agentcache.engine.constants import REPORT_URL_VARIABLE
from agentcache.engine.replies.parser_choice import PLUGIN
from agentcache.engine.vllm.base import envs

REPORT_PATH = "/agentcache/report"
# Not below our other routes, which need the API key: it asks for that.
LIVE_PATH = "/agentcache-live"


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
