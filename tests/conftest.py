"""What every test can use, and how much the property tests try.

The Hypothesis profile is `fast` unless HYPOTHESIS_PROFILE or --hypothesis-profile names another. A run that fails ends
with the options that repeat it: a seed is drawn here, because Hypothesis prints none for state machines.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import ssl
import sys
from collections.abc import Collection, Generator, Iterator
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from background_server import SharedServer

# Engines run beside each other, and two threads of one that wait for each other on busy cores take fifty times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# vLLM loads it to look for drafts, and it would set OpenMP's threads to the cores.
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
# vLLM for the CPU takes `--distributed-executor-backend uni` under this alone, which also keeps an LLM in one process.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
# An error in what only explains, which a server goes on without, fails the test, also in an engine of its own process.
os.environ["AGENTCACHE_OBSERVERS_RAISE"] = "1"
# Engines of the CPU compile no model here. What vLLM compiles for them is a few lines of its sampler, by g++ and in
# each process anew.
if version("torch").endswith("+cpu"):
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
# What every engine of the CPU reads when it starts, in whatever process, and the value at which it fails.
BINDING = "VLLM_CPU_OMP_THREADS_BIND"
NO_ENGINE = "the test lacks the mark engine"
# Fixtures that are made once: no test has two.
ONE_WORKER = ("shared_server", "wheel_bin", "forkserver")

# A new SSL context loads every certificate, which takes 30 ms. Tests use no TLS, so all HTTP clients share one.
ssl.create_default_context = cache(ssl.create_default_context)

settings.register_profile("fast", max_examples=30, deadline=None, print_blob=True, derandomize=False)
settings.register_profile("quick", settings.get_profile("fast"), max_examples=5)
settings.register_profile("thorough", settings.get_profile("fast"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Before Hypothesis reads it.
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.randrange(2**32))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What test files import stays: Python's collector, which would take half a second for it, never looks at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker gets all tests of the shared server, others those of the wheel and of forks, and first."""
    items.sort(key=lambda item: [fixture not in fixtures_of(item) for fixture in ONE_WORKER])
    for item in items:
        for fixture in ONE_WORKER:
            if fixture in fixtures_of(item):
                item.add_marker(pytest.mark.xdist_group(fixture))


def fixtures_of(item: pytest.Item) -> Collection[str]:
    return getattr(item, "fixturenames", ())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All other tests go to the workers a file at a time: the tests of a file share engines."""
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """An engine that starts without the mark fails: `make test-fast` starts none."""
    os.environ[BINDING] = "nobind" if item.get_closest_marker("engine") else NO_ENGINE
    # An engine in this process has vLLM keep its environment as it was then, and tests change it.
    if (envs := sys.modules.get("vllm.envs")) is not None:
        envs.disable_envs_cache()
    # vLLM looks at each kind of model in a process that loads vLLM for it, lest a GPU be initialized here.
    registry: Any = sys.modules.get("vllm.model_executor.models.registry")
    if registry is not None and not sys.modules["torch"].cuda.is_available():
        registry._run_in_subprocess = lambda look: look()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if terminalreporter.stats.get("failed"):
        profile, seed = settings.get_current_profile_name(), config.option.hypothesis_seed
        terminalreporter.write_line(f"Repeat with: --hypothesis-profile={profile} --hypothesis-seed={seed}")


@pytest.fixture(scope="session")
def wheel_bin() -> Path:
    """The commands of an environment that has the wheel and what it needs, and nothing of the checkout."""
    from wheel_install import install_wheel

    return install_wheel()


@pytest.fixture(scope="session")
def forkserver(tiny_model_path: str) -> Iterator[None]:
    """Processes that have loaded vLLM are forked from one, which has the environment of an engine's start."""
    from loaded_once import run_forkserver

    with run_forkserver(tiny_model_path):
        yield


@pytest.fixture(scope="session")
def tiny_model_path() -> str:
    """The folder of the model `tiny`, from the user's own cache: making it takes seconds."""
    from agentcache.models.catalog import resolve_model

    return resolve_model("tiny").path


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """Call its `use` before the first request, or the tests of another file have left something."""
    from background_server import engine_processes, share_server

    before = engine_processes()
    with share_server(tmp_path_factory.mktemp("server") / "log") as server:
        yield server
    # vLLM waits some seconds for its processes, not until they are gone.
    _, alive = psutil.wait_procs(engine_processes() - before, timeout=15)
    assert alive == []


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A free port, for one server at a time."""
    from held_ports import hold_ports

    with hold_ports(1) as (held,):
        yield held


@pytest.fixture(scope="module")
def without_plots() -> Iterator[None]:
    """Reports are as always, with empty plots: to draw them takes longer than to run the jobs."""
    from agentcache.report import html

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "PLOTS", tuple(replace(plot, draw=lambda _policies: None) for plot in html.PLOTS))
        patch.setattr(html, "render_svg", lambda _figure, name: f'<svg id="{name}"/>')
        yield


@pytest.fixture
def vllm_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What vLLM and we log; a `caplog` alone hears it only until vLLM sets its logging up."""
    from vllm.config.logging import LoggingConfig
    from vllm.logger import configure_logging_if_needed

    # It does so with the first engine of the process, which else would take back what is set here.
    configure_logging_if_needed(LoggingConfig())
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    return caplog
