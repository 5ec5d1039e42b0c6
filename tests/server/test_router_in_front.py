"""A real vllm-router in front of two servers: who gets a session, what a killed server costs, who hears of its end.

The workers are small processes, as two real servers take minutes to start; our own part runs in a thread beside them.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Thread
from typing import Any

import fake_worker
import httpx
import pytest
import uvicorn
from made_engine import FakeCore, make_app, make_engine, two_turns

from agentcache.server.job_reader import JobReader
from agentcache.server.session_router import SessionRouter

# Its script is beside the interpreter, but not where an environment borrows another's packages.
COMMAND = [sys.executable, "-m", "vllm_router.launch_router"]
CHAT: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "Hello"}]}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("vllm_router") is None, reason="no vllm-router: the extra `router` brings it"),
]


@dataclass
class Fleet:
    url: str
    workers: dict[int, subprocess.Popen[bytes]]

    def ask(self, session: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json=CHAT | body, headers={"X-Session-ID": session})

    def home(self, session: str) -> int:
        return int(self.ask(session).json()["port"])

    def kill(self, port: int) -> None:
        self.workers[port].kill()
        self.workers[port].wait(10)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with run_fleet() as found:
        yield found


@contextmanager
def run_fleet() -> Iterator[Fleet]:
    port, metrics_port, *ports = find_ports(4)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for each in ports:
            processes.append(subprocess.Popen([sys.executable, fake_worker.__file__, str(each)]))
        urls = [f"http://127.0.0.1:{each}" for each in ports]
        for url in urls:
            wait_until(lambda url=url: is_up(url))  # type: ignore[misc]
        # Routers of tests that run at once cannot share the default port of the metrics.
        own_ports = ["--port", str(port), "--prometheus-port", str(metrics_port)]
        command = [*COMMAND, "--policy", "sticky_least_loaded", *own_ports, "--worker-urls", *urls]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_until(lambda: is_up(f"http://127.0.0.1:{port}"))
        yield Fleet(f"http://127.0.0.1:{port}", dict(zip(ports, processes, strict=False)))
    finally:
        for process in processes:
            process.kill()
            process.wait(10)


def find_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def wait_until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_turns_of_a_session_come_to_one_server_by_its_header(fleet: Fleet) -> None:
    sessions = [f"session {number}" for number in range(6)]
    homes = [fleet.home(session) for session in sessions]
    assert {homes.count(port) for port in fleet.workers} == {3}
    for session, home in zip(sessions, homes, strict=True):
        answer = fleet.ask(session).json()
        assert (answer["port"], answer["session"]) == (home, session)


def test_requests_without_that_header_all_go_to_one_server(fleet: Fleet) -> None:
    """docs/replicas.md says so: such clients must not be sent this way."""
    ports = set()
    for number in range(6):
        name = f"session {number}"
        for header in ("x-claude-code-session-id", "session-id", "x-session-affinity", "anything"):
            body = CHAT | {"prompt_cache_key": name}
            answer = httpx.post(f"{fleet.url}/v1/chat/completions", json=body, headers={header: name})
            ports.add(answer.json()["port"])
    assert len(ports) == 1


def test_a_name_that_a_server_gives_comes_to_the_client(fleet: Fleet) -> None:
    answer = httpx.post(f"{fleet.url}/v1/chat/completions", json=CHAT)
    assert answer.headers["X-Session-ID"] == f"named by {answer.json()['port']}"


def test_a_killed_server_s_sessions_go_on_at_the_other(fleet: Fleet) -> None:
    home = fleet.home("one")
    with httpx.stream(
        "POST", f"{fleet.url}/v1/chat/completions", json=CHAT | {"stream": True}, headers={"X-Session-ID": "one"}
    ) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        fleet.kill(home)
        # The router ends the stream as if it were whole; only what stands at its end is missing.
        assert "data: [DONE]" not in list(lines)
    (other,) = set(fleet.workers) - {home}
    # Until the router has noticed, the client is told to try again.
    answers: list[httpx.Response] = []

    def is_answered() -> bool:
        answers.append(fleet.ask("one"))
        return answers[-1].status_code == 200

    wait_until(is_answered)
    assert {answer.status_code for answer in answers[:-1]} <= {500, 503}
    assert fleet.home("one") == other


def test_the_end_of_a_job_at_our_server_frees_its_place(fleet: Fleet) -> None:
    """The router counts the session no more: the next new ones go to where it was."""
    sessions = ["a", "b", "c", "d"]
    homes = {session: fleet.home(session) for session in sessions}
    over = [session for session in sessions if homes[session] == homes["a"]]
    with our_server(fleet.url, over) as url:
        for session in over:
            httpx.delete(f"{url}/agentcache/jobs/{session}").raise_for_status()
    assert [fleet.home(session) for session in ("e", "f")] == [homes["a"]] * 2


@contextmanager
def our_server(router_url: str, sessions: list[str]) -> Iterator[str]:
    """Our routes before an engine that has these jobs. At its end the router has been told."""
    core = FakeCore((make_engine(), [two_turns(session, 100.0) for session in sessions]))
    app = make_app(core)
    told = SessionRouter(router_url)
    app.state.agentcache_jobs = JobReader(core.call, router=told)
    (port,) = find_ports(1)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
        wait_until(lambda: not told._tasks)
    finally:
        server.should_exit = True
        thread.join(10)
