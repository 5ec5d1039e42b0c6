"""A real vllm-router in front of two servers: who gets a session, what a killed server costs, who hears of its end.

The workers are small processes, as two real servers take minutes to start; our own part runs in a thread beside them.
What SIGTERM to a real server costs behind it is in test_lifecycle.py, which has one.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import httpx
import pytest
import uvicorn
from made_engine import FakeCore, make_app, make_engine, two_turns
from router_fleet import CHAT, Fleet, needs_router, run_fleet, wait_until

from agentcache.server.job_reader import JobReader
from agentcache.server.session_router import SessionRouter

pytestmark = [pytest.mark.engine, needs_router]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with run_fleet() as found:
        yield found


@pytest.fixture(scope="module")
def shared_fleet() -> Iterator[Fleet]:
    """For tests that take nothing from it, with sessions of their own."""
    with run_fleet() as found:
        yield found


def test_turns_of_a_session_come_to_one_server_by_its_header(shared_fleet: Fleet) -> None:
    sessions = [f"session {number}" for number in range(6)]
    homes = [shared_fleet.home(session) for session in sessions]
    assert {homes.count(port) for port in shared_fleet.workers} == {3}
    for session, home in zip(sessions, homes, strict=True):
        answer = shared_fleet.ask(session).json()
        assert (answer["port"], answer["session"]) == (home, session)


def test_requests_without_that_header_all_go_to_one_server(shared_fleet: Fleet) -> None:
    """docs/routers.md says so: such clients must not be sent this way."""
    ports = set()
    for number in range(6):
        name = f"session {number}"
        for header in ("x-claude-code-session-id", "session-id", "x-session-affinity", "anything"):
            body = CHAT | {"prompt_cache_key": name}
            answer = httpx.post(f"{shared_fleet.url}/v1/chat/completions", json=body, headers={header: name})
            ports.add(answer.json()["port"])
    assert len(ports) == 1


def test_a_name_that_a_server_gives_comes_to_the_client(shared_fleet: Fleet) -> None:
    answer = httpx.post(f"{shared_fleet.url}/v1/chat/completions", json=CHAT)
    assert answer.headers["X-Session-ID"] == f"named by {answer.json()['port']}"


def test_a_killed_server_s_sessions_go_on_at_the_other(fleet: Fleet) -> None:
    home = fleet.home("one")
    with fleet.stream("one") as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        fleet.kill(home)
        # The router ends the stream as if it were whole; only what stands at its end is missing.
        assert "data: [DONE]" not in list(lines)
    (other,) = set(fleet.workers) - {home}
    # Until the router has noticed, the client is told to try again.
    _, before = fleet.ask_until_answered("one")
    assert before <= {500, 503}
    assert fleet.home("one") == other


def test_a_server_taken_off_the_list_ends_its_replies(fleet: Fleet) -> None:
    """And its sessions go on elsewhere without an error; docs/routers.md advises it before a SIGTERM."""
    home = fleet.home("one")
    (other,) = set(fleet.workers) - {home}
    with fleet.stream("one") as answer:
        lines = answer.iter_lines()
        next(lines)
        fleet.take_off(home)
        assert fleet.home("one") == other
        httpx.get(f"http://127.0.0.1:{home}/release")
        assert "data: [DONE]" in list(lines)


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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            wait_until(lambda: not told._tasks)
        finally:
            server.should_exit = True
            thread.join(10)
