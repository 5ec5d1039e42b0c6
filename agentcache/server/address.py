"""Checks that the server's address is free, before anything slow is loaded."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from vllm.entrypoints.launchers.launcher import create_server_socket, create_server_unix_socket

from agentcache.errors import InputError

REPORT_PATH = "/agentcache/report"
# Not below our other routes, which need the API key: it asks for that.
LIVE_PATH = "/agentcache-live"


def check_address(args: Namespace) -> None:
    """Check that vLLM can listen at --host and --port, or at --uds. Raises InputError when it cannot."""
    if args.headless or args.api_server_count == 0 or args.data_parallel_multi_port_external_lb:
        # There is no server, or a supervisor gives each of its servers a port.
        return
    if args.uds:
        _try_path(args.uds)
    else:
        # vLLM runs a server for each data-parallel engine, and they share the port.
        _try_port(args.host, args.port, shared=(args.api_server_count or args.data_parallel_size) > 1)


def write_report_url(args: Namespace) -> str | None:
    """Return where a browser finds the live report; None where there is no server, or none at a port of its own."""
    if args.headless or args.api_server_count == 0 or args.uds:
        return None
    host = "127.0.0.1" if args.host in (None, "", "0.0.0.0", "::") else args.host
    scheme = "https" if args.ssl_certfile else "http"
    path = LIVE_PATH if args.api_key or os.environ.get("VLLM_API_KEY") else REPORT_PATH
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{args.port}{args.root_path or ''}{path}"


def _try_port(host: str | None, port: int, *, shared: bool) -> None:
    try:
        create_server_socket((host or "", port), reuse_port=shared).close()
    except (OSError, OverflowError) as error:
        flags = f"--host {host} --port {port}" if host else f"--port {port}"
        cause = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{flags}: the server cannot listen there ({cause}); give an address that is free") from error


def _try_path(path: str) -> None:
    try:
        create_server_unix_socket(path).close()
    except OSError as error:
        # A path that is too long has no strerror.
        cause = error.strerror or error
        raise InputError(f"--uds {path}: the server cannot listen there ({cause}); give a path that is free") from error
    Path(path).unlink()
