"""A thread that makes and writes the lines of a recording, so that the engine waits for no hash and no disk."""

from __future__ import annotations

from queue import Full, Queue
from threading import Thread

from vllm.logger import init_logger

from agentcache.engine.record.line_file import LineFile
from agentcache.engine.record.salted_line import EndedRequest, LineMaker
from workloads.recording.line import Header

logger = init_logger("vllm.agentcache")

# Requests of which the disk is behind. More are left out, and the next line says how many.
_MOST_WAITING = 4096
# A disk that takes longer does not hold up the end of the server.
_LAST_WRITES_S = 5.0


class LineWriter:
    """`header` is what the first line of each file carries."""

    def __init__(self, file: LineFile, lines: LineMaker, header: Header) -> None:
        self._file = file
        self._lines = lines
        self._header = header
        # Each with how many before it found no room.
        self._waiting: Queue[tuple[EndedRequest, int] | None] = Queue(_MOST_WAITING)
        self._without_room = 0
        self._thread = Thread(target=self._write_all, name="agentcache-record", daemon=True)
        self._thread.start()

    def write(self, request: EndedRequest) -> None:
        """Have the request written soon, or count it as lost. Never waits."""
        try:
            self._waiting.put_nowait((request, self._without_room))
        except Full:
            if not self._without_room:
                logger.warning("The disk is too slow for the recording, which leaves requests out.")
            self._without_room += 1
        else:
            self._without_room = 0

    def close(self) -> None:
        """Write what waits, within seconds."""
        try:
            self._waiting.put(None, timeout=_LAST_WRITES_S)
        except Full:
            logger.warning("The disk does not answer, so the last %d requests are not recorded.", _MOST_WAITING)
            return
        self._thread.join(_LAST_WRITES_S)

    def _write_all(self) -> None:
        unwritten = 0
        while (waiting := self._waiting.get()) is not None:
            request, without_room = waiting
            lost = unwritten + without_room
            header = self._header if self._file.begins_file else None
            try:
                self._file.write(self._lines.make(request, lost, header))
            except OSError as error:
                if not unwritten:
                    logger.warning("A request is missing in the recording: %s", error)
                unwritten = lost + 1
            else:
                unwritten = 0
        self._file.close()
