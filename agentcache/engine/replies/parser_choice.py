"""The engine reads replies with the tool-call parser of its server, which vLLM does not tell it."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from agentcache.config import RuntimeConfig
from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.engine.replies.tool_reader import ToolReader
from agentcache.engine.vllm.base import envs, init_logger
from agentcache.engine.vllm.config import VllmConfig
from agentcache.engine.vllm.parsers import ToolParserManager

logger = init_logger("vllm.agentcache")

# As vLLM's variable VLLM_PLUGINS names us.
PLUGIN = "agentcache"


def find_parser(args: Namespace) -> str | None:
    """Find the parser of the server's options; one that a plug-in brings is known to the server alone."""
    name: str | None = getattr(args, "tool_call_parser", None)
    if name is None or name in ToolParserManager.list_registered():
        return name
    logger.warning(
        "The agent runtime cannot read tool calls with %s, which is none of vLLM's own parsers; if one of those can, "
        "name it by agentcache's knob runtime.tool_parser.",
        name,
    )
    return None


def tell_parser(additional_config: Any, args: Namespace) -> dict[str, Any]:
    """Return the engine's additional configuration with the server's parser, unless it has one, or null.

    Raises InputError for a configuration that cannot be.
    """
    given = dict(additional_config or {})
    config = read_config(given)
    if "tool_parser" in config.runtime.model_fields_set:
        return given
    ours = config.model_dump(exclude_unset=True)
    ours["runtime"] = {**ours.get("runtime", {}), "tool_parser": find_parser(args)}
    return {**given, CONFIG_KEY: ours}


def make_reader(vllm_config: VllmConfig, runtime: RuntimeConfig) -> ToolReader | None:
    """Make the reader; None where replies are not to be read, or, with a warning, where no parser is given."""
    obstacle = _find_obstacle(runtime)
    if obstacle is not None:
        logger.warning("Tool calls are not read, so nothing is kept while tools run: %s", obstacle)
    return None if runtime.tool_parser is None else ToolReader(vllm_config, runtime.tool_parser)


def _find_obstacle(runtime: RuntimeConfig) -> str | None:
    """Find why the front end has not told what it has to tell, and what to do."""
    is_said = "tool_parser" in runtime.model_fields_set
    if is_said and runtime.tool_parser is None:
        return None
    if envs.VLLM_PLUGINS is not None and PLUGIN not in envs.VLLM_PLUGINS:
        return f"VLLM_PLUGINS is set and does not name {PLUGIN}; add it."
    if envs.VLLM_USE_RUST_FRONTEND:
        return "vLLM's Rust front end does not tell which tools a request declares; unset VLLM_USE_RUST_FRONTEND."
    if is_said:
        return None
    return (
        "the engine was not started by vLLM's server command; give it the name of the server's tool-call parser, "
        f'as in additional_config={{"{CONFIG_KEY}": {{"runtime": {{"tool_parser": "hermes"}}}}}}, or null.'
    )
