"""Hooks agentcache into a process that takes requests, once the arguments of its engine name agentcache.

vLLM runs plug-ins before it knows of any engine. So all that is put in at once looks at the arguments of engines, and
leaves those that do not name agentcache as they are.
"""

from __future__ import annotations

import signal
import threading
from argparse import Namespace
from collections.abc import Mapping
from functools import cache, wraps
from typing import Any

from agentcache.config import AgentCacheConfig
from agentcache.config_reader import CONFIG_KEY, PLACE, read_config
from agentcache.engine.constants import SCHEDULER_CLASS
from agentcache.engine.vllm.base import EngineArgs, VllmConfig
from agentcache.engine.vllm.compat import check_vllm, installed_version
from agentcache.engine.vllm.patches import replace
from agentcache.errors import TERMINATED, CompatibilityError, InputError, in_one_line
from agentcache.front_end.offloading import steer_offloading
from agentcache.job_log import check_logs
from agentcache.policy.registry import find_policy

_API_SERVER = "vllm.entrypoints.launchers.api_server.entry"
# The attribute of vLLM's engine arguments with the live report's address.
_REPORT_URL = "agentcache_report_url"


@cache
def watch_engine_arguments() -> None:
    """Watch for engine arguments that name our scheduler or configuration. Safe to call more than once."""
    from_cli_args: Any = EngineArgs.from_cli_args.__func__  # type: ignore[attr-defined]
    create_engine_config = EngineArgs.create_engine_config

    @wraps(from_cli_args)
    def read_options(cls: type[EngineArgs], args: Namespace) -> EngineArgs:
        engine_args: EngineArgs = from_cli_args(cls, args)
        if _names_agentcache(engine_args):
            prepare_front_end()
            from agentcache.front_end.server_options import find_report_url, tell_parser

            engine_args.additional_config = tell_parser(engine_args.additional_config, args)
            replace(engine_args, _REPORT_URL, find_report_url(args))
        return engine_args

    @wraps(create_engine_config)
    def make_config(self: EngineArgs, *args: Any, **kwargs: Any) -> VllmConfig:
        if not _names_agentcache(self):
            return create_engine_config(self, *args, **kwargs)
        prepare_front_end()
        leave_at_sigterm()
        from agentcache.front_end.server_options import tell_report_url

        config: VllmConfig = create_engine_config(self, *args, **kwargs)
        # Servers of embeddings load no routes of ours.
        is_generating = config.model_config.runner_type == "generate"
        tell_report_url(getattr(self, _REPORT_URL, None) if is_generating else None)
        ours = read_config(config.additional_config)
        _check_knobs(config, ours)
        steer_offloading(config, ours, is_connector_given=self.kv_transfer_config is not None)
        return config

    replace(EngineArgs, "from_cli_args", classmethod(read_options))
    replace(EngineArgs, "create_engine_config", make_config)


def _names_agentcache(engine_args: EngineArgs) -> bool:
    """Tell whether the arguments name us. One derived from ours has a name of its own: the configuration tells."""
    scheduler, config = engine_args.scheduler_cls, engine_args.additional_config
    names = {f"{base.__module__}.{base.__qualname__}" for base in getattr(scheduler, "__mro__", ())}
    return SCHEDULER_CLASS in {scheduler, *names} or (isinstance(config, Mapping) and CONFIG_KEY in config)


def _check_knobs(config: VllmConfig, ours: AgentCacheConfig) -> None:
    """Raise InputError for what the engine core would refuse after the model is loaded."""
    from agentcache.engine.blocks.evictor_inputs import find_own_profile
    from agentcache.engine.jobs.duration_files import check_files

    parallel = config.parallel_config
    # The engines of this machine.
    ranks = range(parallel.data_parallel_rank, parallel.data_parallel_rank + parallel.data_parallel_size_local)
    check_files(ours.runtime, ranks)
    if (log := ours.runtime.job_log) is not None and find_policy(ours.policy).runtime is None:
        problem = f"policy {ours.policy} follows no jobs; leave it out, or choose another policy"
        raise InputError(f"{PLACE}runtime.job_log: {log}: {problem}")
    check_logs(log, ranks)
    find_own_profile(config, ours)


def prepare_front_end() -> None:
    """Enable our part of a front end. Safe to call more than once. Raises CompatibilityError for an unknown vLLM.

    The scheduler is loaded by the engine core; here it is only seen, before anything slow, whether it can be.
    """
    check_vllm()
    try:
        import agentcache.engine.scheduler  # noqa: F401
        from agentcache.front_end.placing_client import make_placing_clients
        from agentcache.front_end.request_marks import mark_requests
    except ImportError as error:
        if not (error.name or "").startswith("vllm"):
            raise
        raise CompatibilityError(f"vLLM {installed_version()}: {in_one_line(error)}") from error
    mark_requests()
    make_placing_clients()


def leave_at_sigterm() -> None:
    """Let SIGTERM end a server whose engines start, by our handler in the place of its API server's; any other stays.

    vLLM's raises a KeyboardInterrupt, and swallows it where it waits for engines (`zmq_socket_ctx`): the server comes
    up. It passes on a SystemExit. Once it serves it hears the signal in another way.
    """
    handler = signal.getsignal(signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and getattr(handler, "__module__", None) == _API_SERVER:
        signal.signal(signal.SIGTERM, _leave)


def _leave(*_: object) -> None:
    raise SystemExit(TERMINATED)
