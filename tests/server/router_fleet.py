"""A real vllm-router in front of servers: small processes that stand for ours, and real ones that run already."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import fake_worker
import httpx
import pytest
from held_ports import hold_ports

# Its script is beside the interpreter, but not where an environment borrows another's packages.
COMMAND = [sys.executable, "-m", "vllm_router.launch_router"]
CHAT: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "Hello"}]}

needs_router = pytest.mark.skipif(
    find_spec("vllm_router") is None, reason="no vllm-router: the extra `router` brings it"
)


@dataclass
class Fleet:
    """`workers` are the small processes, by their port."""

    url: str
    workers: dict[int, subprocess.Popen[bytes]]

    def ask(self, session: str, **body: Any) -> httpx.Response:
        return httpx.post(self._chat, json=CHAT | body, headers={"X-Session-ID": session}, timeout=60)

    def ask_until_answered(self, session: str) -> tuple[httpx.Response, set[int]]:
        """Ask as a client does that tries again: the answer, and what the router said before."""
        answers: list[httpx.Response] = []

        def is_answered() -> bool:
            answers.append(self.ask(session))
            return answers[-1].status_code == 200

        wait_until(is_answered)
        return answers[-1], {answer.status_code for answer in answers[:-1]}

    def stream(self, session: str, **body: Any) -> AbstractContextManager[httpx.Response]:
        headers = {"X-Session-ID": session}
        return httpx.stream("POST", self._chat, json=CHAT | body | {"stream": True}, headers=headers, timeout=60)

    def home(self, session: str) -> int:
        return int(self.ask(session).json()["port"])

    def take_off(self, port: int) -> None:
        """Have the router forget the server, which goes on."""
        off = httpx.post(f"{self.url}/remove_worker", params={"url": f"http://127.0.0.1:{port}"})
        assert off.status_code == 200

    def kill(self, port: int) -> None:
        self.workers[port].kill()
        self.workers[port].wait(10)

    @property
    def _chat(self) -> str:
        return f"{self.url}/v1/chat/completions"


@contextmanager
def run_fleet(workers: int = 2, beside: Sequence[int] = ()) -> Iterator[Fleet]:
    """So many small processes behind a router, and the servers on the ports `beside`."""
    processes: list[subprocess.Popen[bytes]] = []
    with hold_ports(2 + workers) as (port, metrics_port, *ports), ended_together(processes):
        for each in ports:
            processes.append(subprocess.Popen([sys.executable, fake_worker.__file__, str(each)]))
        urls = [f"http://127.0.0.1:{each}" for each in (*ports, *beside)]
        for url in urls:
            wait_until(lambda url=url: is_up(url))  # type: ignore[misc]
        # Routers of tests that run at once cannot share the default port of the metrics.
        own_ports = ["--port", str(port), "--prometheus-port", str(metrics_port)]
        command = [*COMMAND, "--policy", "sticky_least_loaded", *own_ports, "--worker-urls", *urls]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_until(lambda: is_up(f"http://127.0.0.1:{port}"))
        yield Fleet(f"http://127.0.0.1:{port}", dict(zip(ports, processes, strict=False)))


@contextmanager
def ended_together(processes: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait(10)


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
