"""Builds vLLM's serve arguments with agentcache's own added."""

from __future__ import annotations

import copy
import pkgutil
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from agentcache.config import AgentCacheConfig
from agentcache.config_reader import CONFIG_KEY, read_config
from agentcache.engine.constants import FORCED_REPLY_PROCESSOR, SCHEDULER_CLASS
from agentcache.engine.observe.recorder import check_folder
from agentcache.engine.vllm.base import AsyncEngineArgs, FlexibleArgumentParser, VllmConfig, current_platform
from agentcache.engine.vllm.compat import find_moved
from agentcache.engine.vllm.engine import UsageContext
from agentcache.engine.vllm.requests import ReasoningParserManager, ToolParserManager
from agentcache.errors import InputError, in_one_line, suggest
from agentcache.front_end.server_options import find_parser
from agentcache.models.catalog import resolve_model
from agentcache.models.hub import check_hub
from agentcache.option_parser import OptionParser

# vLLM's own default, 0, kills the engine before it saves what it has learned of tools. In that time it also answers
# what is under way.
SHUTDOWN_TIMEOUT_S = 10
# What `agentcache serve` takes itself: a misspelt one comes here with vLLM's.
OWN_OPTIONS = ("--policy", "--agentcache", "--record", "--job-log", "--profile", "--forced-replies")


class _VllmParser(OptionParser, FlexibleArgumentParser):
    """vLLM's parser, with its errors in one line."""

    elsewhere = OWN_OPTIONS

    def load_config_file(self, file_path: str) -> list[str]:
        """Load the file that --config names. Raises InputError."""
        place = f"--config {file_path}"
        try:
            options: list[str] = super().load_config_file(file_path)
        # What is no YAML, no text or no options ends in an exception of its own each.
        except Exception as error:
            remedy = "write an option of vLLM's and its value a line, as in max-model-len: 8192"
            raise InputError(f"{place}: {in_one_line(error)}; {remedy}") from error
        for word in options:
            if word in OWN_OPTIONS:
                raise InputError(f"{place}: the file is for vLLM's options; give {word} on the command line")
        return options

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
    """Build the arguments of `vllm serve MODEL OPTIONS` with our scheduler and its configuration.

    `policy`, `forced_replies` and `knobs`, fields of AgentCacheConfig, override `--additional-config`.
    Raises InputError when the model or an option cannot work.
    """
    find_moved("cli_env_setup")()
    resolved = resolve_model(model)
    # The user's options come last, so they override the model's.
    args = _parse([resolved.path, *_leave_out(resolved.options, options), *options])
    args.model = args.model_tag
    args.subparser = "serve"
    check_hub(args.model, revision=args.revision, token=args.hf_token)
    args.scheduler_cls = _check_scheduler(args.scheduler_cls)
    config = _build_config(args, policy, forced_replies, knobs or {})
    args.additional_config = {**(args.additional_config or {}), CONFIG_KEY: config.model_dump()}
    if config.forced_replies:
        _accept_forced_replies(args)
    try:
        find_moved("validate_parsed_serve_args")(args)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from None
    return args


def _parse(words: list[str]) -> Namespace:
    own = _VllmParser(prog="agentcache serve MODEL", add_help=False)  # type: ignore[no-untyped-call]
    parser = find_moved("make_arg_parser")(own)
    # Without the tokens that were cached no use can be billed; vLLM leaves them out.
    parser.set_defaults(shutdown_timeout=SHUTDOWN_TIMEOUT_S, enable_prompt_tokens_details=True)
    if words.count("--config") > 1:
        raise InputError("--config: given twice; give one file")
    try:
        args: Namespace = parser.parse_args(words)
    except IndexError:
        # vLLM takes the next word for the value of an option such as --compilation-config.mode.
        raise InputError("vLLM refuses the options: the last one lacks its value") from None
    except (OSError, ValueError) as error:
        # Of the file that --config names.
        raise InputError(f"vLLM refuses the options: {in_one_line(error)}") from None
    if args.config:
        # vLLM has read the file of a --config that is a word of its own, and takes no notice of any other.
        raise InputError(f"--config={args.config}: vLLM would not read it; give --config {args.config}")
    return args


def _leave_out(options: Sequence[str], given: Sequence[str]) -> list[str]:
    """Leave out those of the model's options that are given as well: vLLM warns of an option that comes twice."""
    names = {word.partition("=")[0].replace("_", "-") for word in given if word.startswith("--")}
    kept: list[str] = []
    is_kept = True
    for word in options:
        if word.startswith("--"):
            is_kept = word not in names
        if is_kept:
            kept.append(word)
    return kept


def _check_scheduler(name: str | None) -> str:
    """Return the name of the scheduler's class: ours, or one derived from it. Raises InputError for any other."""
    if name is None:
        return SCHEDULER_CLASS
    from agentcache.engine.scheduler import AgentScheduler

    try:
        is_ours = issubclass(pkgutil.resolve_name(name), AgentScheduler)
    except (ImportError, AttributeError, ValueError, TypeError):
        is_ours = False
    if not is_ours:
        raise InputError(
            f"--scheduler-cls {name}: agentcache brings its own scheduler; "
            f"give a class derived from {SCHEDULER_CLASS}, or use `vllm serve` to run another one"
        )
    return name


def make_engine_config(args: Namespace) -> VllmConfig:
    """Let vLLM make its configuration, without loading a model; `args` stays as it is. Raises InputError."""
    try:
        # vLLM changes nested options in place.
        engine_args = AsyncEngineArgs.from_cli_args(copy.deepcopy(args))
        config: VllmConfig = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER, headless=args.headless)
    except ValidationError as error:
        raise InputError(
            f"vLLM refuses the options: {in_one_line(error.errors()[0]['msg'].removeprefix('Value error, '))}"
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"vLLM refuses the options: {in_one_line(error)}") from error
    return config


def _build_config(
    args: Namespace, policy: str | None, forced_replies: bool, knobs: Mapping[str, Any]
) -> AgentCacheConfig:
    given = read_config(args.additional_config or {}).model_dump()
    for name, value in knobs.items():
        given[name] = {**given[name], **value} if isinstance(value, Mapping) else value
    if policy is not None:
        given["policy"] = policy
    given["forced_replies"] |= forced_replies
    tool_parsers, reasoning_parsers = ToolParserManager.list_registered(), ReasoningParserManager.list_registered()
    _check_parser(f"{CONFIG_KEY}.runtime.tool_parser", given["runtime"]["tool_parser"], tool_parsers)
    if not args.tool_parser_plugin:
        _check_parser("--tool-call-parser", args.tool_call_parser, tool_parsers)
    if not args.reasoning_parser_plugin:
        _check_parser("--reasoning-parser", args.reasoning_parser or None, reasoning_parsers)
    given["runtime"]["tool_parser"] = given["runtime"]["tool_parser"] or find_parser(args)
    config = read_config({CONFIG_KEY: given})
    if config.record.file is not None:
        check_folder(Path(config.record.file))
    return config


def _check_parser(option: str, name: str | None, known: Sequence[str]) -> None:
    """Check the name now: vLLM does so only when it uses the parser, and raises KeyError."""
    if name is not None and name not in known:
        raise InputError(f"{option} {name}: unknown; choose from {', '.join(known)}{suggest(name, known)}")


def _accept_forced_replies(args: Namespace) -> None:
    """Enable what a replay needs of a server: forced replies, and the figures of each request.

    The V1 model runner needs our logits processor; the V2 runner refuses it and has its own switch.
    """
    args.enable_prompt_tokens_details = True
    args.enable_per_request_metrics = not args.disable_log_stats
    if current_platform.is_cpu():
        args.logits_processors = [*(args.logits_processors or []), FORCED_REPLY_PROCESSOR]
    else:
        args.enable_trace_replay = True
