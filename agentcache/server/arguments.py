"""vLLM's serve arguments with agentcache's own put in."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from agentcache.config import CONFIG_KEY, AgentCacheConfig, read_config
from agentcache.engine.constants import FORCED_REPLY_PROCESSOR, SCHEDULER_CLASS
from agentcache.errors import InputError
from agentcache.models.catalog import resolve_model

logger = init_logger("vllm.agentcache")


class _OptionParser(FlexibleArgumentParser):
    """vLLM's parser, whose complaint is ours to show in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"vLLM refuses the options: {message}")


def build_arguments(
    model: str,
    options: Sequence[str],
    *,
    policy: str | None = None,
    forced_replies: bool = False,
    knobs: Mapping[str, Any] | None = None,
) -> Namespace:
    """The arguments of `vllm serve MODEL OPTIONS` with our scheduler and its configuration.

    `policy`, `forced_replies` and `knobs`, fields of AgentCacheConfig, go over what `--additional-config` says.
    Raises InputError when the model or an option cannot work.
    """
    cli_env_setup()
    resolved = resolve_model(model)
    parser = make_arg_parser(_OptionParser(prog="agentcache serve MODEL", add_help=False))  # type: ignore[no-untyped-call]
    # What the user gives comes last, so it wins over what the model brings.
    args: Namespace = parser.parse_args([resolved.path, *resolved.options, *options])
    args.model = args.model_tag
    args.subparser = "serve"
    if args.scheduler_cls is not None:
        raise InputError("--scheduler-cls: agentcache brings its own scheduler; use `vllm serve` to run another one")
    args.scheduler_cls = SCHEDULER_CLASS
    config = _build_config(args, policy, forced_replies, knobs or {})
    args.additional_config = {**(args.additional_config or {}), CONFIG_KEY: config.model_dump()}
    if config.forced_replies:
        _accept_forced_replies(args)
    try:
        validate_parsed_serve_args(args)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from None
    return args


def _build_config(
    args: Namespace, policy: str | None, forced_replies: bool, knobs: Mapping[str, Any]
) -> AgentCacheConfig:
    given = read_config(args.additional_config or {}).model_dump()
    for name, value in knobs.items():
        given[name] = {**given[name], **value} if isinstance(value, Mapping) else value
    if policy is not None:
        given["policy"] = policy
    given["forced_replies"] |= forced_replies
    _check_parser(f"{CONFIG_KEY}.runtime.tool_parser", given["runtime"]["tool_parser"])
    if not args.tool_parser_plugin:
        _check_parser("--tool-call-parser", args.tool_call_parser)
    given["runtime"]["tool_parser"] = given["runtime"]["tool_parser"] or _find_parser(args)
    return read_config({CONFIG_KEY: given})


def _find_parser(args: Namespace) -> str | None:
    """The server's, for the engine; one that a plug-in brings is known to the server alone."""
    name: str | None = args.tool_call_parser
    if name is None or name in ToolParserManager.list_registered():
        return name
    logger.warning(
        "The agent runtime cannot read tool calls with %s, which --tool-parser-plugin brings; if one of vLLM's own "
        "parsers can, name it by --agentcache runtime.tool_parser=NAME.",
        name,
    )
    return None


def _check_parser(option: str, name: str | None) -> None:
    """vLLM itself looks at it only where replies may call tools, and after the model is loaded."""
    known = ToolParserManager.list_registered()
    if name is not None and name not in known:
        raise InputError(f"{option} {name}: unknown; choose from {', '.join(known)}")


def _accept_forced_replies(args: Namespace) -> None:
    """What a replay needs of a server: replies that it can dictate, and figures of every request.

    The V1 model runner needs our logits processor; the V2 runner refuses it and has its own switch.
    """
    args.enable_prompt_tokens_details = True
    args.enable_per_request_metrics = not args.disable_log_stats
    if current_platform.is_cpu():
        args.logits_processors = [*(args.logits_processors or []), FORCED_REPLY_PROCESSOR]
    else:
        args.enable_trace_replay = True
