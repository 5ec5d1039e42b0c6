"""Makes and writes the lines of a recording in a thread, so that the engine waits for no parser, hash or disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Thread

from agentcache.engine.record.line_file import LineFile
from agentcache.engine.record.salted_line import EndedRequest, LineMaker
from agentcache.engine.vllm.base import init_logger
from tool_runtime.learning.tool_key import ToolKey
from workloads.recording.line import Header

logger = init_logger("vllm.agentcache")

# Requests of which the disk is behind. More are left out, and the next line says how many.
_MOST_WAITING = 4096
# Requests that end soon after each other are written together, when code and data are in the CPU's caches, but none
# waits for longer than that. A process that is killed loses less than what was running.
_TOGETHER = 8
_LONGEST_WAIT_S = 0.5
# A disk that takes longer does not hold up the end of the server.
_LAST_WRITES_S = 5.0

# Reads which tools a reply calls.
FindCalls = Callable[[], Sequence[ToolKey]]


class LineWriter:
    """`header` is what the first line of each file carries."""

    def __init__(self, file: LineFile, lines: LineMaker, header: Header) -> None:
        self._file = file
        self._lines = lines
        self._header = header
        # Each with how many before it found no room.
        self._waiting: deque[tuple[EndedRequest, FindCalls | None, int]] = deque()
        self._without_room = 0
        self._goes_on = Event()
        self._is_closing = False
        # What has ended the thread too early.
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, name="agentcache-record", daemon=True)
        self._thread.start()

    def write(self, request: EndedRequest, find_calls: FindCalls | None = None) -> None:
        """Have the request written soon, or count it as lost. Never waits.

        `find_calls` tells the calls of a whole reply, in the writer's thread. Raises the error that has ended it.
        """
        self._check()
        if len(self._waiting) >= _MOST_WAITING:
            if not self._without_room:
                logger.warning("The disk is too slow for the recording, which leaves requests out.")
            self._without_room += 1
            return
        self._waiting.append((request, find_calls, self._without_room))
        self._without_room = 0
        if len(self._waiting) == _TOGETHER:
            self._goes_on.set()

    def stop(self) -> None:
        """Have what waits written, and the thread end then. Never waits."""
        self._is_closing = True
        self._goes_on.set()

    def close(self) -> None:
        """Write what waits, within seconds. Raises the error that has ended the thread."""
        self.stop()
        self._thread.join(_LAST_WRITES_S)
        self._check()
        if self._thread.is_alive():
            lost = len(self._waiting) + 1
            logger.warning("The disk does not answer, so the last %d requests are not recorded.", lost)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception as error:
            # For the engine's thread, which knows what to do with it.
            self._error = error
            self._waiting.clear()
        finally:
            self._file.close()

    def _write_all(self) -> None:
        unwritten = 0
        is_last = False
        while not is_last:
            self._goes_on.wait(_LONGEST_WAIT_S)
            self._goes_on.clear()
            # Before the rest is taken: what comes before the end is written.
            is_last = self._is_closing
            while self._waiting:
                unwritten = self._write(*self._waiting.popleft(), unwritten)

    def _write(self, request: EndedRequest, find_calls: FindCalls | None, without_room: int, unwritten: int) -> int:
        """Return how many requests up to this one are missing since the last that was written."""
        lost = unwritten + without_room
        header = self._header if self._file.begins_file else None
        if find_calls is not None and (calls := find_calls()):
            request = request._replace(tools=[call.tool for call in calls], end="calls")
        try:
            self._file.write(self._lines.make(request, lost, header))
        except OSError as error:
            if not unwritten:
                logger.warning("A request is missing in the recording: %s", error)
            return lost + 1
        return 0
