"""An engine in a process of its own, as it is served: what a process keeps for kernels is no neighbour's."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any, Concatenate, ParamSpec, TypeVar

from live_engine import LiveEngine, make_prompt
from random_weights import register_random_weights

P = ParamSpec("P")
T = TypeVar("T")
# Neither CUDA nor vLLM survives a fork.
SPAWN = multiprocessing.get_context("spawn")


class EngineFailedError(Exception):
    """The traceback of the engine's process, or how that ended; `reason` is the error alone, in one line."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class EngineAlone(AbstractContextManager["EngineAlone"]):
    """It begins to start when it is made. `wait` before the first call."""

    def __init__(self, model: str, **options: Any) -> None:
        self._connection, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(theirs, model, options))
        self._process.start()
        # Else a process that dies leaves the connection open.
        theirs.close()

    def wait(self) -> None:
        """Return when the engine has replied once: some kernels are missed only then."""
        self._receive()

    def call(self, function: Callable[Concatenate[LiveEngine, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Call a module's function in the engine's process, with the engine."""
        self._connection.send((function, args, options))
        result: T = self._receive()
        return result

    def __exit__(self, *_: object) -> None:
        # An engine that hangs would not hear anything else.
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _receive(self) -> Any:
        try:
            succeeded, result = self._connection.recv()
        except EOFError:
            self._process.join()
            ended = f"the engine's process ended with {self._process.exitcode}"
            raise EngineFailedError(ended, ended) from None
        if not succeeded:
            raise EngineFailedError(*result)
        return result


def _serve(connection: Connection, model: str, options: dict[str, Any]) -> None:
    """Answer with whether it succeeded, and the result or the traceback."""
    register_random_weights()
    try:
        engine = LiveEngine(model, **options)
        engine.ask(make_prompt(seed=99, tokens=20), 4)
    except Exception as error:
        connection.send((False, _describe(error)))
        return
    connection.send((True, None))
    while True:
        try:
            function, args, kwargs = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, function(engine, *args, **kwargs)))
        except Exception as error:
            connection.send((False, _describe(error)))


def _describe(error: Exception) -> tuple[str, str]:
    only = " ".join("".join(traceback.format_exception_only(error)).split())
    return "".join(traceback.format_exception(error)), only[:500]
