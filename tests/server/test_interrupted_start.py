"""Ctrl-C while `agentcache serve` starts its engine."""

from __future__ import annotations

import signal
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.network_utils import zmq_socket_ctx

from agentcache.server import command


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("check_address", "configure_logging_from_args", "_check_config"):
        monkeypatch.setattr(command, name, lambda _: None)
    monkeypatch.setattr(command, "choose_plugins", lambda: None)
    monkeypatch.setattr(command, "build_arguments", lambda *_, **__: Namespace())


@pytest.fixture
def _handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


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
