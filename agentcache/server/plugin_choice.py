"""Sets `VLLM_PLUGINS`: vLLM loads plug-ins with routes only if it names them, and then loads no others."""

from __future__ import annotations

import os
from importlib.metadata import entry_points

from agentcache.engine.constants import PLUGIN
from agentcache.engine.vllm.base import disable_envs_cache
from agentcache.errors import InputError

_VARIABLE = "VLLM_PLUGINS"
_ENDPOINTS = "vllm.endpoint_plugins"
# vLLM loads these by itself while the variable is not set.
_LOADED_ANYWAY = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)


def choose_plugins() -> None:
    """Have our routes loaded, in this process and those it starts, and everything else as without us.

    Raises InputError when that would also load routes of other plug-ins, which the user has not asked for.
    """
    if (given := os.environ.get(_VARIABLE)) is not None:
        names = {name for name in given.split(",") if name}
    else:
        names = {entry.name for group in _LOADED_ANYWAY for entry in entry_points(group=group)}
        if unasked := sorted(names & {entry.name for entry in entry_points(group=_ENDPOINTS)} - {PLUGIN}):
            raise InputError(
                f"{_VARIABLE}: vLLM's plug-in {unasked[0]} would add routes to the server; "
                f"list the plug-ins to load, {PLUGIN} among them, separated by commas"
            )
    os.environ[_VARIABLE] = ",".join(sorted(names | {PLUGIN}))
    # If an engine has run in this process before, vLLM has cached the variables.
    disable_envs_cache()
