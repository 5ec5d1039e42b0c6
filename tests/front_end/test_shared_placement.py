"""API servers that share a placement see the same as one server that has it for itself."""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import Popen
from threading import Lock
from typing import Any

import pytest
from hand_clock import Clock
from kept_objects import list_kept

from agentcache.errors import ServerError
from agentcache.front_end import placement_process, shared_placement
from agentcache.front_end.placement_process import JobPlaces, Meeting
from agentcache.front_end.shared_placement import PlacementProcess, Rejoining, SharedPlacement, connect, start_process
from agentcache.policy.price import RecomputeCost
from agentcache.policy.replicas.chain import Chain
from agentcache.policy.replicas.engine_load import PrefillCost

BLOCK = 4
COST = PrefillCost(RecomputeCost(slope_s=0.0, base_s=1.0, floor_s=1e-9), BLOCK)
MAKE = partial(JobPlaces, 3, capacity_tokens=400, prefill_cost=COST)


def share(connection: Connection | None) -> SharedPlacement:
    """Share the placement behind a connection, once."""
    return SharedPlacement(connection, BLOCK, Rejoining(refuse, run=lambda work: work()))


def refuse() -> Connection:
    raise ServerError("there is none")


@pytest.fixture(scope="module")
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Meeting:
    return Meeting(str(tmp_path_factory.mktemp("placement") / "socket"), b"a key")


@pytest.fixture(scope="module")
def process(meeting: Meeting) -> Iterator[Popen[bytes]]:
    process = start_process(meeting, MAKE)
    yield process
    process.kill()
    process.wait(10)


@pytest.fixture
def servers(meeting: Meeting, process: Popen[bytes]) -> list[SharedPlacement]:
    assert process.poll() is None
    return [share(connect(meeting)) for _ in range(2)]


def test_two_servers_see_what_one_would(servers: list[SharedPlacement]) -> None:
    alone = MAKE()
    for turn in range(3):
        for job in range(8):
            # Each job's turns come to the two servers in turn; half of the jobs have no name.
            server, name, request = servers[(turn + job) % 2], f"job {job}" if job % 2 else None, f"{job}-{turn}"
            tokens = [100 + job] * 8 * (turn + 1)
            told = server.place(request, Chain(tokens, BLOCK), float(turn), job=name)
            assert told == alone.place(request, Chain(tokens, BLOCK), float(turn), job=name)
            for placement in (server, alone):
                placement.got_token(request)
                replied = (f"chatcmpl-{request}-1f", "tenant", f"job {job}")
                placement.finished(request, [100 + job] * 8, turn + 0.5, answered=turn == 2, replied=replied)
            assert server.find_homes("job 1", None) == alone.find_homes("job 1", None)
    assert [home.job for home in servers[1].find_homes("chatcmpl-3-2", ["tenant"])] == ["job 3"]
    assert servers[1].find_homes("chatcmpl-3-2", ["another"]) == []
    servers[0].end_session("job 1", None)
    assert servers[1].find_homes("job 1", None) == []


def test_a_server_with_another_key_is_sent_away(meeting: Meeting, process: Popen[bytes]) -> None:
    connect(meeting)
    with pytest.raises(Exception, match="digest sent was rejected"):
        connect(meeting._replace(key=b"another"))
    assert process.poll() is None
    connect(meeting)


def test_without_a_process_servers_say_so(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="not there after 0 s"):
        connect(Meeting(str(tmp_path / "none"), b"a key"), wait_s=0.0)


def test_a_process_that_ends_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, started = tmp_path / "socket", list[subprocess.Popen[bytes]]()

    def start(*given: Any) -> Popen[bytes]:
        path.unlink(missing_ok=True)
        started.append(start_process(*given))
        return started[-1]

    monkeypatch.setattr(shared_placement, "start_process", start)
    first, other, clock = (
        PlacementProcess(Meeting(str(path), b"k"), MAKE),
        PlacementProcess(Meeting(str(path), b"k")),
        Clock(),
    )
    servers = [
        SharedPlacement(each.join(), BLOCK, Rejoining(each.join, clock=clock, run=lambda work: work()))
        for each in (first, other)
    ]
    assert [server.find_homes("unknown", None) for server in servers] == [[], []]
    started[0].kill()
    started[0].wait(10)
    for how in ("is gone", "is not there"):
        for server in servers:
            with pytest.raises(ServerError, match=how):
                server.find_homes("unknown", None)
    clock.now_s += 1.0
    for server in servers:
        with pytest.raises(ServerError, match="is not there"):
            server.find_homes("unknown", None)
        assert server.place("1", Chain([1] * 8, BLOCK), 0.0, job="job").job == "job"
    assert len(started) == 2
    started[1].kill()
    started[1].wait(10)


def test_no_request_of_a_server_that_gave_up_stays_open() -> None:
    placement, (ours, process) = MAKE(), Pipe()
    for request in ("1", "2"):
        ours.send((True, "place", (request, Chain([1] * 8, BLOCK), 0.0), {"job": request}))
    ours.send((True, "finished", ("1", [7] * 8, 0.0), {}))
    ours.close()
    placement_process._answer(process, placement, Lock())
    assert list_kept(placement, Chain) == [], "of open requests alone"
    assert sum(load.queued_s for load in placement.loads) == 0


def test_servers_that_end_later_are_answered(tmp_path: Path) -> None:
    meeting = Meeting(str(tmp_path / "socket"), b"a key")
    process = start_process(meeting, MAKE)
    connections = [connect(meeting) for _ in range(2)]
    first, last = map(share, connections)
    assert first.find_homes("unknown", None) == last.find_homes("unknown", None) == []
    connections[0].close()
    assert process.stdin is not None
    process.stdin.close()
    for _ in range(3):
        assert last.find_homes("unknown", None) == []
    connections[1].close()
    assert process.wait(10) == 0


def test_a_late_answer_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_placement, "ANSWER_WAIT_S", 0.0)
    ours, process = Pipe()
    server = share(ours)
    with pytest.raises(ServerError, match="did not answer within 0 s"):
        server.find_homes("unknown", None)
    assert process.recv() == (True, "find_homes", ("unknown", None), {})
    with pytest.raises(ServerError, match="is not there"):
        server.find_homes("somebody", None)


def test_what_is_sent_can_be_sent() -> None:
    assert isinstance(pickle.loads(pickle.dumps(MAKE))(), JobPlaces)


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
