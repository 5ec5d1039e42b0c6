"""The router is told of sessions that are over; nobody waits for it, and its absence is one line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from threading import Thread
from typing import Any

import httpx
import pytest
from held_ports import hold_ports
from made_engine import FakeCore, make_engine, make_job, make_turn

from agentcache.config_reader import read_knobs
from agentcache.errors import InputError, ServerError
from agentcache.server import session_router
from agentcache.server.job_reader import POLL_S, JobReader, watch_expiry
from agentcache.server.session_router import SessionRouter

# Its script is not on the path of an environment that borrows another's packages.
COMMAND = [sys.executable, "-m", "vllm_router.launch_router"]


async def settle() -> None:
    """Until the router has told all that it was asked to tell."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.gather(*tasks)


def ask(handle: Callable[[httpx.Request], httpx.Response], *sessions: str) -> None:
    async def run() -> None:
        router = SessionRouter("http://router:8080", httpx.MockTransport(handle))
        for session in sessions:
            router.finish(session)
            await settle()

    asyncio.run(run())


def test_a_session_s_end_is_told_by_its_name() -> None:
    seen: list[tuple[str, str]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, str(request.url)))
        return httpx.Response(200)

    ask(handle, "one/two & three")
    assert seen == [("POST", "http://router:8080/finish_session?session_id=one%2Ftwo+%26+three")]


@pytest.mark.parametrize("refuses", [True, False])
def test_a_router_that_fails_is_one_line(refuses: bool, vllm_log: pytest.LogCaptureFixture) -> None:
    def handle(_request: httpx.Request) -> httpx.Response:
        if refuses:
            raise httpx.ConnectError("refused")
        return httpx.Response(404)

    ask(handle, "one", "two")
    (record,) = vllm_log.records
    assert "router.url http://router:8080" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_many_ends_at_once_share_a_client_and_few_workers(
    monkeypatch: pytest.MonkeyPatch, vllm_log: pytest.LogCaptureFixture
) -> None:
    made: list[httpx.AsyncClient] = []
    told: list[str] = []
    open_requests = most_open = 0
    initialize = httpx.AsyncClient.__init__

    def note_client(self: httpx.AsyncClient, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        initialize(self, *args, **kwargs)

    async def handle(request: httpx.Request) -> httpx.Response:
        nonlocal open_requests, most_open
        open_requests += 1
        most_open = max(most_open, open_requests)
        await asyncio.sleep(0)
        open_requests -= 1
        told.append(request.url.params["session_id"])
        return httpx.Response(200)

    async def run() -> None:
        router = SessionRouter("http://router", httpx.MockTransport(handle))
        for number in range(40):
            router.finish(str(number))
        await settle()

    monkeypatch.setattr(httpx.AsyncClient, "__init__", note_client)
    monkeypatch.setattr(session_router, "_MAX_QUEUED", 30)
    asyncio.run(run())
    assert (len(made), most_open) == (1, 4)
    assert sorted(told, key=int) == [str(number) for number in range(30)]
    assert "30 sessions wait to be told already" in vllm_log.records[0].getMessage()
    assert len(vllm_log.records) == 1


def make_core() -> FakeCore:
    """Two engines, of which the second follows no jobs."""
    return FakeCore((make_engine(), [make_job("one", make_turn(0, 1.0))]), (make_engine(1, runtime=None), []))


def tell(core: FakeCore, do: Callable[[JobReader], Awaitable[object]]) -> list[str]:
    """Which sessions the router is told of, when this is done."""
    seen: list[str] = []

    async def run() -> None:
        def handle(request: httpx.Request) -> httpx.Response:
            seen.append(request.url.params["session_id"])
            return httpx.Response(200)

        router = SessionRouter("http://router", httpx.MockTransport(handle))
        try:
            await do(JobReader(core.call, router=router))
        finally:
            await settle()

    asyncio.run(run())
    return seen


@pytest.mark.parametrize(
    ("asked", "told"),
    [("one", ["one"]), ("reply", ["its session"]), ("of nobody", []), ("unknown", ["unknown"])],
    ids=["by its name", "by a reply", "by a reply of a job without a name", "forgotten by the engines"],
)
def test_releasing_a_job_tells_the_router_its_name(asked: str, told: list[str]) -> None:
    core = make_core()
    core.replies = {"reply": "its session", "of nobody": None}
    assert tell(core, lambda jobs: jobs.release(asked)) == told


def test_an_engine_that_fails_leaves_the_router_told() -> None:
    core = make_core()
    core.failure = Exception("gone")

    async def release(jobs: JobReader) -> None:
        with pytest.raises(ServerError):
            await jobs.release("one")

    assert tell(core, release) == ["one"]


def test_the_router_is_told_of_idle_sessions_minute_by_minute(vllm_log: pytest.LogCaptureFixture) -> None:
    core = make_core()
    minutes = iter([["a", "b"], None, ["c"]])

    async def sleep(seconds: float) -> None:
        assert seconds == POLL_S
        told = next(minutes, [])
        if told == []:
            raise asyncio.CancelledError
        core.failure = None if told else Exception("busy")
        core.expired = told or []

    async def watch(jobs: JobReader) -> None:
        with pytest.raises(asyncio.CancelledError):
            await watch_expiry(jobs, sleep)

    assert tell(core, watch) == ["a", "b", "c"]
    assert "was not told which sessions were idle for too long" in vllm_log.records[-1].getMessage()


def test_sessions_that_engines_tell_in_parts_are_all_told() -> None:
    parts = iter([["a", None], [None], ["b"], []])

    class ToldInParts(FakeCore):
        async def call(self, *_: Any) -> list[Any]:
            return [next(parts), None]

    assert tell(ToldInParts(), lambda jobs: jobs.tell_expired()) == ["a", "b"]
    assert next(parts, "all") == "all"


@pytest.mark.parametrize("url", ["router:8080", "http://router:8080/path", ""])
def test_an_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"router\.url"):
        read_knobs([f"router.url={url}"])


@pytest.fixture
def worker_url() -> Iterator[str]:
    class Worker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Worker) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.engine
@pytest.mark.skipif(find_spec("vllm_router") is None, reason="no vllm-router: the extra `router` brings it")
def test_a_real_router_takes_what_it_is_told(worker_url: str, vllm_log: pytest.LogCaptureFixture) -> None:
    with hold_ports(2) as (port, metrics_port):
        tell_a_router(worker_url, port, metrics_port)
    assert vllm_log.records == []


def tell_a_router(worker_url: str, port: int, metrics_port: int) -> None:
    # Two routers beside each other, as in tests that run at once, cannot share the default port of the metrics.
    ports = ["--port", str(port), "--prometheus-port", str(metrics_port)]
    command = [*COMMAND, "--worker-urls", worker_url, "--policy", "sticky_least_loaded", *ports]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process)

        async def run() -> None:
            router = SessionRouter(f"http://127.0.0.1:{port}")
            router.check()
            router.finish("one")
            await settle()

        asyncio.run(run())
    finally:
        process.terminate()
        process.wait(10)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    # It takes a second alone, and more beside other tests on a small machine.
    end_s = time.monotonic() + 60
    while True:
        try:
            httpx.get(url).raise_for_status()
        except httpx.HTTPError:
            assert process.poll() is None, "the router has ended"
            assert time.monotonic() < end_s, "the router does not answer"
            time.sleep(0.05)
        else:
            return
