"""Checks that the server's address is free, before anything slow is loaded."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from agentcache.engine.vllm.serving import create_server_socket, create_server_unix_socket
from agentcache.errors import InputError


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
