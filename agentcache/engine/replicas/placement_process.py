"""One placement for all API servers of a host, in a process of its own.

A job's turns come to any of them, so that what is known of jobs must be in one place. No vLLM here: it starts in half a
second.
"""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from threading import Lock, Thread
from typing import Any, NamedTuple

from agentcache.engine.replicas.job_places import JobPlaces
from agentcache.engine.replicas.rejoining import Rejoining
from agentcache.errors import ServerError
from agentcache.policy.replicas.chain import Chain
from agentcache.policy.replicas.job_homes import JobHome
from agentcache.policy.replicas.placement import Placed

# vLLM's, without its modules.
logger = logging.getLogger("vllm.agentcache")

# Others wait for the first API server, which starts the process.
START_WAIT_S = 60.0
_RETRY_S = 0.05
# An answer takes a millisecond; where all cores are busy, a second and more. Nothing else of the API server goes on
# meanwhile, but that comes once: an API server that has waited in vain asks no more until a new connection answers.
ANSWER_WAIT_S = 5.0
_MODULE = "agentcache.engine.replicas.placement_process"


class Meeting(NamedTuple):
    """Where API servers find the process: a socket's address, and the key that both sides must have."""

    address: str
    key: bytes


def start_process(meeting: Meeting, make: Callable[[], JobPlaces]) -> subprocess.Popen[bytes]:
    """Start the process. It ends once this one has, however that comes, and so have all that are connected to it.

    API servers end one after another, and those that still run have questions.
    """
    process = subprocess.Popen([sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    pickle.dump((meeting, make), process.stdin)
    process.stdin.flush()
    return process


def connect(meeting: Meeting, wait_s: float = START_WAIT_S) -> Connection:
    """Connect to the process. Raises ServerError when it is not there after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return Client(meeting.address, authkey=meeting.key)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ServerError(f"the process that chooses engines is not there after {wait_s:.0f} s") from error
            time.sleep(_RETRY_S)


class PlacementProcess:
    """The process as an API server reaches it. `make` is given by the one that starts it, also after it has ended."""

    def __init__(self, meeting: Meeting, make: Callable[[], JobPlaces] | None = None) -> None:
        self._meeting = meeting
        self._make = make
        self._process: subprocess.Popen[bytes] | None = None

    def join(self, wait_s: float = 0.0) -> Connection:
        """Connect to the process, and wait for an answer from it. Raises ServerError."""
        if self._make is not None and (self._process is None or self._process.poll() is not None):
            self._process = start_process(self._meeting, self._make)
            wait_s = START_WAIT_S
        try:
            connection = connect(self._meeting, wait_s)
            connection.send((True, "find", ("",), {}))
            connection.recv()
        except (AuthenticationError, EOFError, OSError) as error:
            raise ServerError("the process that chooses engines does not answer") from error
        return connection


class SharedPlacement:
    """What an API server sees of the placement: its methods, answered by the process behind `connection`.

    Methods raise ServerError when the process is gone or does not answer within `ANSWER_WAIT_S`, and from then on, at
    once, until `rejoining` has a new connection. `connection` None: it was not there at the start.
    """

    def __init__(self, connection: Connection | None, block_tokens: int, rejoining: Rejoining) -> None:
        self.block_tokens = block_tokens
        self._connection = connection
        self._rejoining = rejoining
        if connection is None:
            self._lose("is not there")

    def place(self, request: str, chain: Chain, now_s: float, *, job: str | None = None) -> Placed:
        """Choose the engine of a request with this prompt."""
        placed: Placed = self._ask("place", request, chain, now_s, job=job)
        return placed

    def got_token(self, request: str) -> None:
        """Note a request's first token, without an answer: nothing that a client does next depends on it."""
        self._tell("got_token", request)

    def finished(self, request: str, reply: list[int], now_s: float, *, answered: bool = False) -> None:
        """Note that a request is over, with the tokens that it got.

        Return when all API servers see it: the client may send the job's next turn to any of them.
        """
        self._ask("finished", request, reply, now_s, answered=answered)

    def end_job(self, job: str) -> bool:
        """Forget a job that is over. Return False if it is not known."""
        return bool(self._ask("end_job", job))

    def find(self, job: str) -> JobHome | None:
        """Find a job's home."""
        home: JobHome | None = self._ask("find", job)
        return home

    def note_reply(self, request: str, tenant: str | None, job: str) -> None:
        """Note that a request of the job has finished. Return when all API servers see it."""
        self._ask("note_reply", request, tenant, job)

    def find_replied(self, reply: str, tenants: Collection[str | None] | None) -> str | None:
        """Find the job of a reply."""
        job: str | None = self._ask("find_replied", reply, tenants)
        return job

    def _tell(self, method: str, *values: Any, **named: Any) -> None:
        try:
            self._join().send((False, method, values, named))
        except OSError as error:
            raise self._lose("is gone") from error

    def _ask(self, method: str, *values: Any, **named: Any) -> Any:
        connection = self._join()
        try:
            connection.send((True, method, values, named))
            if connection.poll(ANSWER_WAIT_S):
                return connection.recv()
        except (OSError, EOFError) as error:
            raise self._lose("is gone") from error
        raise self._lose(f"did not answer within {ANSWER_WAIT_S:g} s")

    def _join(self) -> Connection:
        if self._connection is None:
            self._connection = self._rejoining.take()
            if self._connection is None:
                raise ServerError("the process that chooses engines is not there")
            logger.info("agentcache: jobs are kept at their engines again.")
        return self._connection

    def _lose(self, how: str) -> ServerError:
        """Give the connection up: a late answer would be taken for that to the next question."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._rejoining.note_loss()
        error = ServerError(f"the process that chooses engines {how}")
        logger.warning("agentcache: vLLM's balancer chooses engines until that is mended, which is tried: %s", error)
        return error


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
