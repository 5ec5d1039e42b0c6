from __future__ import annotations

import os
from importlib.metadata import EntryPoint, EntryPoints

import pytest
from vllm import envs

from agentcache.errors import InputError
from agentcache.server import plugin_choice
from agentcache.server.plugin_choice import choose_plugins


@pytest.fixture
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that it is put back even if it was not there.
    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.delenv("VLLM_PLUGINS")


def install(monkeypatch: pytest.MonkeyPatch, **groups: list[str]) -> None:
    def find(group: str) -> EntryPoints:
        names = groups.get(group.removeprefix("vllm."), [])
        return EntryPoints(EntryPoint(name, "somewhere:thing", group) for name in names)

    monkeypatch.setattr(plugin_choice, "entry_points", find)


def chosen() -> list[str]:
    choose_plugins()
    choose_plugins()
    return os.environ["VLLM_PLUGINS"].split(",")


@pytest.mark.usefixtures("_unset")
def test_all_that_vllm_loads_by_itself_is_still_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {"general_plugins": ["agentcache", "lora"], "platform_plugins": ["tpu"], "stat_logger_plugins": ["stats"]}
    install(monkeypatch, **groups, endpoint_plugins=["agentcache", "admin"])
    assert chosen() == ["agentcache", "lora", "stats", "tpu"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("", ["agentcache"]),
        ("agentcache", ["agentcache"]),
        ("lora,admin", ["admin", "agentcache", "lora"]),
    ],
)
def test_what_the_user_lists_is_kept_and_ours_added(
    monkeypatch: pytest.MonkeyPatch, given: str, names: list[str]
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", given)
    install(monkeypatch, general_plugins=["agentcache", "lora"], endpoint_plugins=["agentcache", "admin"])
    assert chosen() == names


@pytest.mark.usefixtures("_unset")
def test_nobody_elses_routes_come_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, general_plugins=["agentcache", "admin"], endpoint_plugins=["agentcache", "admin"])
    with pytest.raises(InputError, match="VLLM_PLUGINS: vLLM's plug-in admin would add routes"):
        choose_plugins()
    assert "VLLM_PLUGINS" not in os.environ


@pytest.mark.usefixtures("_unset")
def test_vllm_sees_the_choice_though_an_engine_ran_in_process() -> None:
    envs.enable_envs_cache()
    choose_plugins()
    assert envs.VLLM_PLUGINS is not None
    assert "agentcache" in envs.VLLM_PLUGINS
