from __future__ import annotations

from multiprocessing import Pipe
from multiprocessing.connection import Connection

from hand_clock import Clock

from agentcache.engine.replicas.rejoining import Rejoining
from agentcache.errors import ServerError


class Process:
    """Counts tries to reach it, all in vain while it `is_down`."""

    def __init__(self) -> None:
        self.is_down = True
        self.tries = 0

    def join(self) -> Connection:
        self.tries += 1
        if self.is_down:
            raise ServerError("it is down")
        return Pipe()[0]


def find_tries(rejoining: Rejoining, process: Process, clock: Clock, seconds: int) -> list[int]:
    """After how many seconds of asking each quarter of a second it was tried."""
    found = []
    for quarter in range(4 * seconds):
        before = process.tries
        rejoining.take()
        if process.tries > before:
            found.append(quarter // 4)
        clock.now_s += 0.25
    return found


def test_tries_come_at_twice_the_time_up_to_a_minute() -> None:
    process, clock = Process(), Clock()
    rejoining = Rejoining(process.join, clock=clock, run=lambda work: work())
    rejoining.note_loss()
    assert find_tries(rejoining, process, clock, 200) == [1, 3, 7, 15, 31, 63, 123, 183]


def test_a_connection_that_lasts_begins_the_count_anew() -> None:
    process, clock = Process(), Clock()
    rejoining = Rejoining(process.join, clock=clock, run=lambda work: work())
    rejoining.note_loss()
    find_tries(rejoining, process, clock, 10)
    process.is_down = False
    for lasts_s, next_s in ((59.0, 16), (60.0, 1)):
        while rejoining.take() is None:
            clock.now_s += 1.0
        clock.now_s += lasts_s
        rejoining.note_loss()
        process.is_down = True
        assert find_tries(rejoining, process, clock, next_s + 1) == [next_s]
        process.is_down = False


def test_no_second_try_begins_beside_one() -> None:
    process, clock = Process(), Clock()
    waiting = []
    rejoining = Rejoining(process.join, clock=clock, run=waiting.append)
    rejoining.note_loss()
    clock.now_s += 500.0
    assert [rejoining.take() for _ in range(3)] == [None] * 3
    assert len(waiting) == 1
