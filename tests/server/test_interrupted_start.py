"""Ctrl-C and SIGTERM while a server starts its engine."""

from __future__ import annotations

import asyncio
import signal
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import zmq
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.launchers.api_server import entry
from vllm.utils.network_utils import zmq_socket_ctx

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.front_end.hooks import leave_at_sigterm
from agentcache.server import command


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("check_address", "configure_logging_from_args", "_check_config"):
        monkeypatch.setattr(command, name, lambda _: None)
    monkeypatch.setattr(command, "choose_plugins", lambda: None)
    monkeypatch.setattr(command, "build_arguments", lambda *_, **__: Namespace())


@pytest.fixture
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def serve() -> None:
    command.serve("tiny", [], None, forced_replies=False, knobs={})


def test_the_first_ctrl_c_ends_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where vLLM waits for engines it swallows a KeyboardInterrupt, and goes on to wait."""
    before = signal.getsignal(signal.SIGINT)

    def wait_for_engines(_: Namespace) -> None:
        with zmq_socket_ctx(f"ipc://{tmp_path}/socket", zmq.ROUTER, bind=True):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ServeSubcommand, "cmd", wait_for_engines)
    with pytest.raises(SystemExit) as ended:
        serve()
    assert ended.value.code == 130
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("_handlers")
def test_a_server_in_the_background_hears_no_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    heard = []
    monkeypatch.setattr(ServeSubcommand, "cmd", lambda _: heard.append(signal.getsignal(signal.SIGINT)))
    serve()
    assert heard == [signal.SIG_IGN]


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize(("scheduler", "status"), [(SCHEDULER_CLASS, 143), (None, None)], ids=["ours", "vLLM's"])
def test_sigterm_ends_a_start_of_ours(
    scheduler: str | None, status: int | None, tiny_model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own goes on, as its KeyboardInterrupt is swallowed where it waits for engines."""

    async def wait_for_engines(*_: Any) -> None:
        AsyncEngineArgs(model=tiny_model_path, scheduler_cls=scheduler).create_engine_config()
        with zmq_socket_ctx(f"ipc://{tmp_path}/socket", zmq.ROUTER, bind=True):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(entry, "setup_server", lambda *_, **__: ("", None))
    monkeypatch.setattr(entry, "run_server_worker", wait_for_engines)
    with nullcontext() if status is None else pytest.raises(SystemExit) as ended:
        asyncio.run(entry.run_server(Namespace()))
    assert status is None or ended.value.code == status


@pytest.mark.usefixtures("_handlers")
def test_a_thread_beside_the_main_one_sets_no_handler() -> None:
    """Python would refuse it."""

    def of_vllm(*_: object) -> None:
        """Stands for `_interrupt_init`."""

    of_vllm.__module__ = entry.__name__
    signal.signal(signal.SIGTERM, of_vllm)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(leave_at_sigterm).result()
    assert signal.getsignal(signal.SIGTERM) is of_vllm


@pytest.mark.usefixtures("_handlers")
def test_the_sigterm_of_another_program_stays_its_own(tiny_model_path: str) -> None:
    def own(*_: object) -> None:
        """Ends the program in its way."""

    signal.signal(signal.SIGTERM, own)
    AsyncEngineArgs(model=tiny_model_path, scheduler_cls=SCHEDULER_CLASS).create_engine_config()
    assert signal.getsignal(signal.SIGTERM) is own
