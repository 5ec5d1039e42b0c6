"""One placement for all API servers of a host, in a process of its own: what runs there.

A job's turns come to any of them, so that what is known of jobs must be in one place. No vLLM here: it starts in half a
second.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Collection, Sequence
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from threading import Lock, Thread
from typing import Any, NamedTuple

from agentcache.engine.marks import ReplyIds, job_name
from agentcache.policy.replicas.job_homes import JobHome
from agentcache.policy.replicas.placement import Placement


class Meeting(NamedTuple):
    """Where API servers find the process: a socket's address, and the key that both sides must have."""

    address: str
    key: bytes


class JobPlaces(Placement):
    """A placement that knows jobs by the ids of their replies as well, by which clients may ask any API server."""

    def __init__(self, engines: int, **settings: Any) -> None:
        """As a placement."""
        super().__init__(engines, **settings)
        self._replied: ReplyIds[str] = ReplyIds()

    def finished(
        self,
        request: str,
        reply: Sequence[int],
        now_s: float,
        *,
        answered: bool = False,
        replied: tuple[str, str | None, str] | None = None,
    ) -> None:
        """Note that a request is over. `replied`: the id that its engine has for it, its tenant and its job."""
        super().finished(request, reply, now_s, answered=answered)
        if replied is not None:
            self._replied.note(*replied)

    def find_homes(self, session: str, tenants: Collection[str | None] | None) -> list[JobHome]:
        """Find homes as engines find jobs: by the session, and where none has this name, by the id of a reply.

        None of all tenants is read as none for sessions: the tenants' names are not known here.
        """
        names = (job_name(session, tenant) for tenant in ((None,) if tenants is None else tenants))
        homes = list(filter(None, map(self.find, names)))
        if not homes and (job := self._replied.find(session, tenants)) is not None:
            homes = list(filter(None, [self.find(job)]))
        return homes

    def end_session(self, session: str, tenants: Collection[str | None] | None) -> None:
        """Forget the jobs that `find_homes` finds: they are over."""
        for home in self.find_homes(session, tenants):
            self.end_job(home.job)


def serve(listener: Listener, placement: JobPlaces) -> None:
    """Answer every API server that connects, each in a thread of its own, one question at a time.

    Each thread ends with its API server, and Python ends no process before its threads.
    """
    lock = Lock()
    while True:
        try:
            connection = listener.accept()
        except (AuthenticationError, EOFError, OSError):
            continue  # Somebody without the key, or who went away.
        Thread(target=partial(_answer, connection, placement, lock), daemon=False).start()


def _answer(connection: Connection, placement: JobPlaces, lock: Lock) -> None:
    placed: set[str] = set()
    try:
        while True:
            wants_answer, method, values, named = connection.recv()
            with lock:
                result = getattr(placement, method)(*values, **named)
            if method == "place":
                placed.add(values[0])
            elif method == "finished":
                placed.discard(values[0])
            if wants_answer:
                connection.send(result)
    except (EOFError, OSError):
        # The API server has ended, or given up: it will tell nothing more of what it has placed here.
        with lock:
            for request in placed:
                placement.finished(request, (), time.monotonic())


def main() -> None:
    """Read what to serve, and serve until the end of the input and of all connections."""
    meeting, make = pickle.load(sys.stdin.buffer)
    # Open until the process ends, or the thread that accepts would find it closed for ever.
    listener = Listener(meeting.address, authkey=meeting.key)
    Thread(target=partial(serve, listener, make()), daemon=True).start()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
