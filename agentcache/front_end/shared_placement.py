"""The placement that all API servers of a host share, as one of them reaches it: asks its process, and starts it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from threading import Thread
from typing import Any

from agentcache.engine.vllm.base import init_logger
from agentcache.errors import ServerError
from agentcache.front_end import placement_process
from agentcache.front_end.placement_process import JobPlaces, Meeting
from agentcache.policy.replicas.chain import Chain
from agentcache.policy.replicas.job_homes import JobHome
from agentcache.policy.replicas.placement import Placed

logger = init_logger("vllm.agentcache")

# Others wait for the first API server, which starts the process.
START_WAIT_S = 60.0
_RETRY_S = 0.05
# An answer takes a millisecond; where all cores are busy, a second and more. Nothing else of the API server goes on
# meanwhile, but that comes once: an API server that has waited in vain asks no more until a new connection answers.
ANSWER_WAIT_S = 5.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


def start_process(meeting: Meeting, make: Callable[[], JobPlaces]) -> subprocess.Popen[bytes]:
    """Start the process. It ends once this one has, however that comes, and so have all that are connected to it.

    API servers end one after another, and those that still run have questions.
    """
    command = [sys.executable, "-m", placement_process.__name__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
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
            connection.send((True, "find_homes", ("", None), {}))
            connection.recv()
        except (AuthenticationError, EOFError, OSError) as error:
            raise ServerError("the process that chooses engines does not answer") from error
        return connection


def _run_in_thread(work: Callable[[], None]) -> None:
    Thread(target=work, name="agentcache-placement", daemon=True).start()


class Rejoining:
    """`join` connects anew, for as long as it takes, or raises ServerError. `run` has a try run beside the caller.

    A try comes one second after a loss, and each further one after twice the time, up to a minute: so also where each
    new connection is lost at once. One that has lasted for a minute begins the count anew.
    """

    def __init__(
        self,
        join: Callable[[], Connection],
        *,
        clock: Callable[[], float] = time.monotonic,
        run: Callable[[Callable[[], None]], None] = _run_in_thread,
    ) -> None:
        self._join = join
        self._clock = clock
        self._run = run
        self._is_trying = False
        self._found: Connection | None = None
        self._pause_s = FIRST_PAUSE_S
        self._joined_s = self._next_s = clock()

    def note_loss(self) -> None:
        """Note that the connection is lost."""
        if self._clock() - self._joined_s >= LONGEST_PAUSE_S:
            self._pause_s = FIRST_PAUSE_S
        self._wait()

    def take(self) -> Connection | None:
        """Return the new connection once there is one, else None; begin a try if one is due. Never waits."""
        # First: what a try finds is there before it ends.
        if self._is_trying:
            return None
        found, self._found = self._found, None
        if found is not None:
            self._joined_s = self._clock()
        elif self._clock() >= self._next_s:
            self._is_trying = True
            self._run(self._try)
        return found

    def _try(self) -> None:
        try:
            self._found = self._join()
        except ServerError:
            self._wait()
        finally:
            self._is_trying = False

    def _wait(self) -> None:
        self._next_s = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


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

    def finished(self, request: str, reply: list[int], now_s: float, **told: Any) -> None:
        """Note that a request is over, with the tokens that it got.

        Return when all API servers see it: the client may send the job's next turn to any of them.
        """
        self._ask("finished", request, reply, now_s, **told)

    def find_homes(self, session: str, tenants: Collection[str | None] | None) -> list[JobHome]:
        """Find where the session's jobs live, or that of a reply."""
        homes: list[JobHome] = self._ask("find_homes", session, tenants)
        return homes

    def end_session(self, session: str, tenants: Collection[str | None] | None) -> None:
        """Forget the session's jobs, which are over."""
        self._ask("end_session", session, tenants)

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
