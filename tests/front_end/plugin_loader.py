"""A process that loads plug-ins as vLLM's processes do, and is not ours: nothing here imports agentcache."""

from __future__ import annotations

import os
import sys
from multiprocessing import process
from pathlib import Path


def load_plugins(model: str, change: str, said: Path, errors: Path) -> None:
    """Say what came of it; `change` is one to vLLM, in Python."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.engine.input_processor import InputProcessor

    assert "agentcache.front_end.plugin" not in sys.modules
    # As a server that somebody started: of a server's processes the first one tells.
    process._parent_process = None  # type: ignore[attr-defined]
    with errors.open("w") as file:
        os.dup2(file.fileno(), 2)
    exec(change)
    load_general_plugins()
    load_general_plugins()
    config = EngineArgs(model=model).create_engine_config()
    modules = ("agentcache.front_end.plugin", "agentcache.engine.scheduler")
    lines = (
        f"loaded: {[name in sys.modules for name in modules]}",
        f"config: {config.scheduler_config.scheduler_cls} {config.additional_config}",
        f"wrapped: {hasattr(InputProcessor.process_inputs, '__wrapped__')}",
        f"added: {hasattr(EngineCoreProc, 'agentcache_snapshot')}",
    )
    said.write_text("\n".join(lines))
