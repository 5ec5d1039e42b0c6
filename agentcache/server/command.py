"""`agentcache serve`: vLLM's own server command, with our scheduler in it."""

from __future__ import annotations

import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentcache.engine.start_cause import hear_cause
from agentcache.engine.vllm.base import configure_logging_from_args
from agentcache.engine.vllm.serving import ServeSubcommand, create_server_socket, create_server_unix_socket
from agentcache.errors import INTERRUPTED, InputError
from agentcache.run.folder import divert_output
from agentcache.server.arguments import build_arguments, make_engine_config
from agentcache.server.plugin_choice import choose_plugins


def serve(
    model: str, options: Sequence[str], policy: str | None, *, forced_replies: bool, knobs: Mapping[str, Any]
) -> None:
    """Serve until stopped. Raises InputError, before anything is loaded, for what cannot work.

    What is found out later, as memory that cannot be had, is one as well.
    """
    args = build_arguments(model, options, policy=policy, forced_replies=forced_replies, knobs=knobs)
    # Before anything slow is loaded.
    check_address(args)
    choose_plugins()
    configure_logging_from_args(args)
    _check_config(args)
    with _leaving_at_interrupt(), hear_cause():
        ServeSubcommand.cmd(args)


@contextmanager
def _leaving_at_interrupt() -> Iterator[None]:
    """End at the first Ctrl-C, until vLLM's server takes the signal over.

    While an engine starts, vLLM swallows a KeyboardInterrupt (`zmq_socket_ctx`), and waits ten minutes for an engine
    that Ctrl-C has ended; it passes on a SystemExit.
    """

    def leave(*_: object) -> None:
        raise SystemExit(INTERRUPTED)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        # Somebody wants no Ctrl-C here, as a shell of what it runs in the background.
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _check_config(args: Namespace) -> None:
    """Raise InputError for what vLLM would refuse with a traceback."""
    if args.data_parallel_multi_port_external_lb:
        # vLLM's supervisor derives other arguments from these, one set for each server.
        return
    with tempfile.NamedTemporaryFile() as log:
        with divert_output(Path(log.name)):
            make_engine_config(args)
        # vLLM logs some messages only once in a process; without this they would be lost.
        sys.stdout.write(Path(log.name).read_text(encoding="utf-8", errors="replace"))


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
