"""Holds ports free for servers that a test is about to start."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def hold_ports(count: int) -> Iterator[list[int]]:
    """Keep so many ports of this machine from all but servers that set SO_REUSEADDR, as most do.

    Until one listens there, connections are refused. A port that was only looked up can be taken by any connection of
    another test before the server has started.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Several API servers of one vLLM share a port in this way.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("127.0.0.1", 0))
        yield [int(each.getsockname()[1]) for each in sockets]
