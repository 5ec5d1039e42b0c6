"""Lets SIGTERM end a server whose engines start.

vLLM's API server raises a KeyboardInterrupt then, and swallows it where it waits for engines (`zmq_socket_ctx`): it
comes up and serves. It passes on a SystemExit. Once it serves it hears the signal in another way.
"""

from __future__ import annotations

import signal
import threading

from agentcache.exit_status import TERMINATED

_API_SERVER = "vllm.entrypoints.launchers.api_server.entry"


def leave_at_sigterm() -> None:
    """Put our handler in the place of that API server's; any other stays."""
    handler = signal.getsignal(signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and getattr(handler, "__module__", None) == _API_SERVER:
        signal.signal(signal.SIGTERM, _leave)


def _leave(*_: object) -> None:
    raise SystemExit(TERMINATED)
