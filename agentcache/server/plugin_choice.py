"""vLLM loads plug-ins that add routes only when `VLLM_PLUGINS` names them, and then no other that it does not name."""

from __future__ import annotations

import os
from importlib.metadata import entry_points

from vllm.envs import disable_envs_cache

from agentcache.errors import InputError

_VARIABLE = "VLLM_PLUGINS"
_OURS = "agentcache"
_ENDPOINTS = "vllm.endpoint_plugins"
# What vLLM loads by itself as long as the variable is not set.
_LOADED_ANYWAY = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)


def choose_plugins() -> None:
    """Have our routes loaded, in this process and those it starts, and all else as without us.

    Raises InputError when that cannot be: other plug-ins' routes would come as well, and nobody has asked for them.
    """
    if (given := os.environ.get(_VARIABLE)) is not None:
        names = {name for name in given.split(",") if name}
    else:
        names = {entry.name for group in _LOADED_ANYWAY for entry in entry_points(group=group)}
        if unasked := sorted(names & {entry.name for entry in entry_points(group=_ENDPOINTS)} - {_OURS}):
            raise InputError(
                f"{_VARIABLE}: vLLM's plug-in {unasked[0]} would add routes to the server; "
                f"list the plug-ins to load, {_OURS} among them, separated by commas"
            )
    os.environ[_VARIABLE] = ",".join(sorted(names | {_OURS}))
    # An engine that has run in this process before made vLLM keep the variables as they were.
    disable_envs_cache()
